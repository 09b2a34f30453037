"""Random keys that are used twice: KeyReuseError, while `anima.debug_key_reuse` (or the option of that name) is on.

    >>> with anima.debug_key_reuse(True):
    ...     key = random.key(0)
    ...     a, b = random.normal(key), random.uniform(key)
    Traceback (most recent call last):
        ...
    anima.errors.KeyReuseError: uniform was given a key that has been used before, by normal at ...

Of programs that are traced, all of what they do with keys is looked at: the same element of an array of keys, a key
that each step of a loop draws from, what branches and called functions use up. Of calls, whether a function uses up a
key that another did. There is nothing to import from here, as in JAX.
"""
