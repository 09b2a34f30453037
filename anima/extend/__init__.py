"""For libraries that extend Anima: what is public, but not for everyday use."""

from anima.extend import core as core, random as random
