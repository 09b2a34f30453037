"""What `python -m anima` can do: a file for each command."""
