"""Set-up shared by the acceptance suite and the tests."""

import pytest

pytest_plugins = ["pytester"]
# What helpers of the tests assert is shown as in the tests themselves.
pytest.register_assert_rewrite("tests")
