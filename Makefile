# make certify       certify the embedded cluster: four nodes on this machine. If it is killed:
#                    .venv/bin/python -m pytest_mnode certificate mnode-report
# make test          formatting, lint, types, unit tests, tests on the rack
# make check         formatting, lint and types alone
# make cases         unit tests and tests on the rack alone
# make test-bare     those of them that may start other programs, where these are absent, in workers
#                    that nothing was imported in before
# make test-odd      a few of them as other users and under other conditions: tests/odd.py lists them
# make test-versions a few of them with the oldest and newest versions of Python, torch and pytest
# make test-red      the acceptance suite on racks with a fault: each criterion turns red
# make frameworks    install training programs of others, once, for make test-red
# make engines       build a Kubernetes from its Go modules, once, for make test-engines
# make test-engines  tests with a real Slurm and real sshd, and the whole suite on the rack
# make machines      make the image of virtual machines from Debian packages, once
# make test-machines tests on virtual machines with soft-RoCE and two NUMA nodes
# make test-gpu      tests of ranks on a GPU, which two nodes of this machine share
# make bench         times against other ways to run distributed tests
# make mutants       200 mutations of the package: do the tests of their rooms catch them?
# make lint          put right what the tools can, then format
# make clean         remove the environment and everything built

PYTHON ?= python3
NODES := 4
# Tests mostly wait, for links, limits and schedulers: six files at a time, on two cores. They keep
# the order of tests/conftest.py: files with the fewest tests take longest, and would come last.
WORKERS := 6
# Files of tests, in place of all of a target: make test TESTS="tests/test_table.py tests/spec"
TESTS :=
REPORT := mnode-report
VENV := .venv
BIN := $(VENV)/bin
# Written last: an environment without it is half made, and is made anew.
READY := $(VENV)/.ready
# Plugins and libraries that tests run beside ours: their lists may change, and the environment stays.
BESIDE := $(VENV)/plugins/.ready $(VENV)/libraries/.ready
# Training programs of others, half a GB, which only tests/acceptance runs.
FRAMEWORKS := $(VENV)/frameworks/.ready

# A stage shows its slowest tests.
SLOWEST := --durations=12 --durations-min=2
# A test that hangs ends its worker after 15 minutes, shows all stacks, and has failed.
HANG := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(HANG) $(SLOWEST)
# Tests of a few files that failed beside others run again alone, and are listed.
AGAIN = || $(BIN)/python -m tests.again $$?
ENGINES := tests/engines
RED := tests/acceptance
WHOLE := tests/engines/test_rack_whole.py
MACHINES := tests/machines
GPU := tests/gpu

# Tests start some thousand interpreters: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: certify test check style types cases test-bare test-odd test-versions frameworks test-red engines test-engines machines test-machines test-gpu mutants lint bench clean environment

certify: environment
	$(BIN)/pytest --mnode-nodes=$(NODES) acceptance/ --mnode-report=$(REPORT)

# Types beside the cases, which mostly wait.
test: style
	+$(MAKE) --no-print-directory --jobs=2 types cases

cases: environment
	$(PYTEST) $(or $(TESTS),--ignore=$(RED) --ignore=$(ENGINES) --ignore=$(MACHINES) --ignore=$(GPU)) $(AGAIN)

check: style types

style: environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: environment
	$(BIN)/mypy

# Files that mention another program, or inject a fault that may need one, and start programs: without
# the program a test is skipped and says why, unless CI is true. Other tests run nothing but Python, or
# read what programs printed; and tests.inner asks a fault of --mnode-fault which program it needs.
PROGRAMS := faults\.inject|injected|need_program|nft|faketime|gdb|ssh|srun|salloc|sbatch|scontrol|squeue|ps|pgrep|tc|ip|openssl
STARTS := subprocess|tests\.(inner|scenario|programs|watched)|pytester|[Rr]ack|PATH
BARE = $(shell grep -rlwE --include='test_*.py' '$(PROGRAMS)' $(if $(TESTS),$(filter %.py,$(TESTS)) /dev/null,tests) | grep -vE '^tests/(acceptance|engines|machines|gpu)/' | xargs grep -lE '$(STARTS)' /dev/null)
test-bare: environment
	$(if $(BARE),env -u CI COLD_WORKERS=1 .ci/bare $(PYTEST) -rs $(BARE) $(AGAIN:||=|| env -u CI .ci/bare))

# Conditions that do not meet are tried together. Tests of what meets paths, users and addresses.
ODD := quoted,home,locale,path ordinary,long,noipv6 nouserns,background container,long busy
ODD_TESTS := $(addprefix tests/,test_first_steps.py test_leaves_nothing.py agent/test_agent.py \
  faults/test_option.py jobs/test_running.py launchers/test_cleanup.py launchers/test_probe.py \
  launchers/test_rack.py launchers/test_sockets.py launchers/test_ssh.py worlds/test_agents.py)
test-odd: environment $(ODD:%=odd-%)
odd-%: environment
	env -u CI $(BIN)/python -m tests.odd $* $(PYTEST) -rs $(ODD_TESTS)

# Versions that pyproject.toml names at least, and the newest of all. A Python that is absent is
# replaced by $(PYTHON).
VERSIONS := build/versions
PYTHON_oldest := python3.11
PYTHON_newest := python3.13
OLDEST = $(PYTHON) -c 'import tomllib; print(*(d.replace(">=", "==") for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))'
PINS_oldest = $$($(OLDEST))
PINS_newest =
VERSIONS_TESTS := $(addprefix tests/,outcome/test_calls.py rank/test_process_group.py \
  worlds/test_hanging.py worlds/test_worlds.py)
test-versions: versions-oldest versions-newest
versions-%: $(VERSIONS)/%/.ready
	env -u CI $(<D)/bin/python -m pytest -rs $(VERSIONS_TESTS)
	$(<D)/bin/python -m pytest --mnode-nodes=2 acceptance/test_mesh.py

$(VERSIONS)/%/.ready: pyproject.toml
	python=$(PYTHON_$*); $$python --version || python=$(PYTHON); $$python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PINS_$*) -e '.[dev]'
	@touch $@

# A quarter of the time of all tests: each of these runs the acceptance suite, or files of it.
# Two at a time: rates and step times are measured.
test-red: WORKERS := 2
test-red: environment frameworks
	$(PYTEST) $(or $(TESTS),$(RED)) $(AGAIN)

engines: environment
	$(BIN)/python -m tests.engines.kubernetes.programs

# Three at a time, since each has a cluster: beside a fourth heartbeats of gangs came too late. And a
# healthy rack alone, whose rates show who works beside.
test-engines: WORKERS := 3
test-engines: BESIDE_OTHERS = $(if $(TESTS),$(filter-out $(WHOLE),$(TESTS)),$(ENGINES) --ignore=$(WHOLE))
test-engines: ALONE = $(if $(TESTS),$(filter $(WHOLE),$(TESTS)),$(WHOLE))
test-engines: environment
	$(if $(BESIDE_OTHERS),$(PYTEST) $(BESIDE_OTHERS) $(AGAIN))
	$(if $(ALONE),$(BIN)/python -m pytest $(ALONE) $(AGAIN))

machines: environment
	$(BIN)/python -m tests.machines.image

# One process: all tests share two machines, which are as busy as this one is fast.
test-machines: environment
	$(BIN)/python -m pytest $(or $(TESTS),$(MACHINES)) $(SLOWEST) $(AGAIN)

# One process: two nodes share the first GPU, and rates are measured.
test-gpu: environment
	$(BIN)/python -m pytest $(GPU)

lint: environment
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: environment
	$(BIN)/python -m benchmarks

# Hours, of which most are for mutations that survive. MUTANTS="--count 20 --under pytest_mnode/jobs"
# tries a few of one room.
mutants: environment
	$(BIN)/python -m benchmarks.mutants $(MUTANTS)

environment: $(READY) $(BESIDE)

frameworks: $(FRAMEWORKS)

# torch first and alone: its version is fixed here, and what follows takes the one that is there.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "pytest-mnode needs Python 3.11 or later, and %s is %d.%d; name another: make PYTHON=/path/to/python3.12" % (sys.executable, v[0], v[1]))'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# With what they import, which may change with them, beside the torch of the environment: pip takes
# it as installed.
$(FRAMEWORKS): tests/frameworks.txt $(READY)
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' >$(@D)/torch.pth
	mv $(@D)/torch.pth $(@D)/lib/python3*/site-packages
	$(BIN)/python -m pip --python $(@D) install --quiet --disable-pip-version-check -r $<
	@touch $@

$(BESIDE): $(VENV)/%/.ready: tests/%.txt $(READY)
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) -r $<
	@touch $@

clean:
	rm -rf $(VENV) mnode-report build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
