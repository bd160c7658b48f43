"""`python -m pytest_mnode.certificate` prints the JSON Schema of certificate.json."""

from pytest_mnode.certificate.files import schema_text

print(schema_text(), end="")
