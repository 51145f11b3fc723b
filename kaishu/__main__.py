"""`python -m kaishu`: the command `kaishu`, for where its folder isn't on the PATH.

Owns nothing; the command line is cli/main.py.
"""

from kaishu.cli.main import main

if __name__ == "__main__":
    main()
