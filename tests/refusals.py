"""What is said to input that cannot be used."""

import pytest

from fheat import BadInput


def refused(call, *arguments, **options):
    """Return the `BadInput` that a call raises: of one line, with a remedy."""
    with pytest.raises(BadInput) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value
