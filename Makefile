# The short names of everything that a developer runs. Build trees lie in build/<preset>.
#
#   make build      configure and build, release
#   make test       install what is missing, build, fetch the small model, run every test
#   make deps       install what is missing
#   make demo       install what is missing, build, fetch the small model, demonstrate sleep with it
#   make chaos      put prefill and decode instances to sleep, kill and stop them, and compare every answer
#   make controls   remove each guarantee once and see the test that guards it fail
#   make bundle     dist/: a binary and its tests that need nothing but the C library
#   make sanitize   every test under AddressSanitizer and UndefinedBehaviorSanitizer
#   make tsan       every test under ThreadSanitizer
#   make format     rewrite the sources with clang-format
#   make clean      remove build/ and dist/
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
JOBS ?= $(shell nproc)
RELEASE := build/release

.DEFAULT_GOAL := build
.PHONY: build deps test demo chaos controls bundle sanitize tsan format clean

build: build-release

build-%:
	cmake --preset $*
	cmake --build build/$* --parallel $(JOBS)

deps:
	tools/install_deps.sh

# Each goal below runs its steps in order, also under make -j.
test: deps
	@$(MAKE) build-release
	tools/run_tests.py $(RELEASE) --jobs $(JOBS)

demo: deps
	@$(MAKE) build-release
	model="$$(tools/fetch_model.sh | tail -n 1)" && $(RELEASE)/bin/dormouse demo "$$model"

chaos: deps
	@$(MAKE) build-release
	tools/chaos.py --build $(RELEASE)

controls: deps
	model="$$(tools/fetch_model.sh | tail -n 1)" && \
	  DORMOUSE_MODEL="$$model" tools/controls.py --jobs $(JOBS)

bundle: deps
	@$(MAKE) build-release
	tools/bundle.sh $(RELEASE)

sanitize: deps
	@$(MAKE) build-debug
	tools/run_tests.py build/debug --jobs $(JOBS)

# Without address randomisation: this sanitizer wants its shadow memory at fixed addresses.
tsan: deps
	@$(MAKE) build-tsan
	setarch --addr-no-randomize tools/run_tests.py build/tsan --jobs $(JOBS)

format:
	tools/check_format.py --fix

clean:
	rm -rf build dist
