"""The certificate of a run: as JSON, as junit XML and as a summary on the terminal.

All modules are pure except `run_facts` (git, installed packages) and `files`. None of them
runs a test, uses pytest's hooks or reads a spec: `certifying.certificate_plugin` does.
"""

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict, build_certificate
from pytest_mnode.certificate.files import write_report
from pytest_mnode.certificate.headline import summary_lines
from pytest_mnode.certificate.junit import measurement_properties
from pytest_mnode.certificate.results import (
    CaseResult,
    CriterionResult,
    CriterionVerdict,
    criterion_name,
)
from pytest_mnode.certificate.run_facts import (
    Commit,
    RunFacts,
    SpecFacts,
    Versions,
    git_commit,
    installed_versions,
)

__all__ = [
    "CaseResult",
    "Certificate",
    "CertificateVerdict",
    "Commit",
    "CriterionResult",
    "CriterionVerdict",
    "RunFacts",
    "SpecFacts",
    "Versions",
    "build_certificate",
    "criterion_name",
    "git_commit",
    "installed_versions",
    "measurement_properties",
    "summary_lines",
    "write_report",
]
