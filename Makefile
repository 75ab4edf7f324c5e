# Every target sets up what it needs from a bare python3; a second call installs nothing again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PYTHONUNBUFFERED := 1
# Every client is a process of its own: without bytecode on disk each would compile fedgc anew, a second or so.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo examples hospitals test test-slow test-gpu fuzz canary check format clean docs reference
.PHONY: docker-wheels docker-images docker-arm64 docker-check dist sbom audit

help:
	@echo "make demo    train digits on four local clients, one slow, one killed in the middle"
	@echo "make examples   runs all examples, one after the other, with a line for each"
	@echo "make hospitals   eight local clients, of which the slowest holds half of the data; two fail"
	@echo "make test    every test that needs no GPU and no minutes"
	@echo "make canary  the contract tests with the newest flwr, transformers, peft and lightning, apart"
	@echo "make fuzz    the properties with examples nobody has tried yet, a million hostile events, a million inputs"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make reference   the generated parts of docs/, written again"
	@echo "make check   format, lint, types, layers, what lies in docker/"
	@echo "make dist    wheel and source of a release in dist/, with an SBOM and their hashes; make sbom: that alone"
	@echo "make audit   known vulnerabilities of the packages in constraints.txt"
	@echo "make docker-wheels, docker-images   packages for building without a network; the images, with Docker"
	@echo "make docker-check   a fleet from the images on a network of its own; as root, without Docker"
	@echo "make docker-arm64   every package of the images as a wheel for aarch64"

setup: $(READY)

# setuptools warns of editable installs, and of the form of project.license, which Flower requires of an app.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	rm -rf fedgc.egg-info # left by a build of wheels; Python would read it instead of the installed metadata
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@
	@echo "ready: $(BIN)/fedgc --help"

demo: $(READY)
	$(BIN)/fedgc demo --folder build/demo

examples: $(READY)
	$(BIN)/python -m examples

hospitals: $(READY)
	$(BIN)/python -m examples.hospitals.federation --folder build/hospitals-$$(date +%Y%m%d-%H%M%S)

# One thread of numpy and torch for each of the three processes: with more threads than cores they would wait for
# each other. Three, because a test that starts processes leaves a core idle at times.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 -m 'not contract and not slow and not gpu'
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'contract and not slow' tests/contract

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

fuzz: $(READY)
	$(BIN)/python -m pytest -q -n 2 -m 'not contract and not slow and not gpu' --hypothesis-profile search
	$(BIN)/python -m tests.fuzz --events 1000000 --inputs 1000000

docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	$(BIN)/mkdocs build --strict --quiet

reference: $(READY)
	$(BIN)/python -m docs.generate

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

# pyproject.toml may not allow the newest flwr yet: it is installed past the requirement, and its own
# requirements are not checked. A failure here tells what a new release of Flower, or of the libraries whose
# trainers take part, breaks.
TRAINERS := transformers accelerate peft lightning
CANARY := .venv-canary
canary:
	test -x $(CANARY)/bin/python || $(PYTHON) -m venv $(CANARY)
	$(CANARY)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	rm -rf fedgc.egg-info
	$(CANARY)/bin/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	$(CANARY)/bin/python -m pip install --quiet --upgrade $(TRAINERS)
	$(CANARY)/bin/python -m pip install --quiet --no-deps --upgrade flwr
	@$(CANARY)/bin/python -m pip list | grep -E "^($$(echo flwr $(TRAINERS) | tr ' ' '|')) "
	$(CANARY)/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'contract and not slow' tests/contract
	$(CANARY)/bin/python -m pytest -q tests/flower/test_private_names.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q -m 'not contract' tests/docker

# Also of the environments in which pip and `build` build; pip reads the second variable for its own.
dist sbom: export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
dist sbom: export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt

dist: $(READY)
	rm -rf dist
	$(MAKE) sbom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --outdir dist .
	rm -rf fedgc.egg-info
	cd dist && sha256sum fedgc* > SHA256SUMS

# Of an environment of its own, since .venv holds what tests need besides.
sbom: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group release
	rm -rf build/sbom && mkdir -p dist
	$(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install --quiet --constraint constraints.txt .
	$(BIN)/cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/fedgc.cdx.json
	rm -rf build/sbom fedgc.egg-info

# The other database of pip-audit, that of its default, answers nothing for a package that it does not know.
VULNERABILITIES := https://api.osv.dev
audit: $(READY)
	@if curl --silent --output /dev/null --max-time 10 $(VULNERABILITIES); then \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --group release && \
		$(BIN)/pip-audit --vulnerability-service osv --requirement constraints.txt --no-deps --disable-pip; \
	else echo "audit: skipped: its database, $(VULNERABILITIES), cannot be reached"; fi

# What tasks import besides, as pip names it: make docker-wheels PACKAGES='pandas pydicom'
PACKAGES ?=
# For the kind of machine that this runs on; pip takes torch from wherever it is told to look.
docker-wheels: $(READY)
	rm -f docker/wheels/*.whl
	$(BIN)/python -m pip wheel --quiet --wheel-dir docker/wheels --constraint constraints.txt \
		'setuptools>=77' '.[postgresql]' $(PACKAGES)
	rm -f docker/wheels/fedgc-*.whl
	@echo "docker/wheels: $$(ls docker/wheels/*.whl | wc -l) packages, $$(du -sh docker/wheels | cut -f1)"

docker-images:
	docker build --file docker/server.Dockerfile --tag fedgc-server:latest --build-arg PACKAGES='$(PACKAGES)' .
	docker build --file docker/client.Dockerfile --tag fedgc-client:latest --build-arg PACKAGES='$(PACKAGES)' .
	docker build --file docker/proxy.Dockerfile --tag fedgc-proxy:latest .

docker-arm64: $(READY)
	$(BIN)/python docker/arm64.py

# Images are kept in CHECK_FOLDER between calls: some 6 GB.
CHECK_FOLDER ?= build/docker-check
docker-check: $(READY)
	@test "$$(id -u)" = 0 || { echo "docker-check: needs root, for network namespaces" >&2; exit 2; }
	@for tool in buildah debootstrap ip; do command -v $$tool >/dev/null && continue; \
		echo "docker-check: $$tool is missing: installing buildah, debootstrap and iproute2 from Debian"; \
		apt-get update -qq && apt-get install -qq --yes --no-install-recommends buildah debootstrap iproute2; \
		break; done
	@ls docker/wheels/*.whl >/dev/null 2>&1 || $(MAKE) docker-wheels
	$(BIN)/python docker/check $(CHECK_FOLDER)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(CANARY) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
