"""What a run leaves behind: the certificate, as JSON, as junit and as a summary to read.

Pure but for `facts` (asks git and the installed packages) and `write` (writes files). Nothing here
runs a test, knows pytest's hooks or reads a spec: the plugin hands over what happened.
"""

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict, build_certificate
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
from pytest_mnode.certificate.summary import summary_lines
from pytest_mnode.certificate.write import write_report

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
