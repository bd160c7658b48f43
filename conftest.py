"""What the acceptance suite and the tests share."""

pytest_plugins = ["pytester"]
