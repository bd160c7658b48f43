"""Set-up shared by the acceptance suite and the tests."""

pytest_plugins = ["pytester"]
