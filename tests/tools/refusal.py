# SPDX-License-Identifier: Apache-2.0
"""What bad input gets, for the tests of the Python package."""


def refuses(call, *words, kind=(ValueError, OSError)):
    """call() raises an error of this kind (a ValueError, or an OSError for a file), whose one sentence has all words."""
    try:
        call()
    except kind as error:
        missing = [word for word in words if str(word) not in str(error)]
        assert not missing, "%r not in %r" % (missing, str(error))
        assert "\n" not in str(error), str(error)
        return
    raise AssertionError("nothing of %s was raised, expected one with %s" % (kind, words))
