# Caisson. `make help` lists the targets; Go, git and make are all that most of
# them need. What is more than a line lives in .ci/*.sh.

GO      ?= go
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD := -trimpath -buildvcs=false
# A backend, a package and a time, for the targets that take them.
BACKEND  ?=
PKG      ?= ./...
FUZZTIME ?= 10s
# INSTALL=1 lets `make test` and `make bench` install an engine; REQUIRE_BACKENDS turns skips
# into failures; SAMPLE=1 runs tests of a matrix at one point of it; VET=off leaves vet to
# `make lint`. The tests and scripts read them.
INSTALL ?=
VET     ?=
SAMPLE  ?=
# What a release has: see .ci/release.sh.
ARCHS ?=
IMAGE ?=
export GO VERSION BACKEND PKG FUZZTIME INSTALL REQUIRE_BACKENDS SAMPLE VET ARCHS IMAGE

RUNSC_MODULE := sandbox/oci/runsc
TOOL := $(GO) tool -modfile=.ci/tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help build caisson demo pictures test race lint fmt fuzz conformance e2e fresh deploy-test corpus injections skills bench projects agents cover vuln mutate man release release-test site check clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

build: caisson $(BIN)/runsc ## build caisson, caisson-guest and gVisor's runsc into bin/

caisson:
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build $(GOFLAGS_BUILD) -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/ ./cmd/caisson ./cmd/caisson-guest

# gVisor is a module of its own (docs/design/guest.md#runtimes); 1-2 minutes the first
# time, nothing while its pinned version stays.
$(BIN)/runsc $(BIN)/runsc-stock: $(wildcard $(RUNSC_MODULE)/* $(RUNSC_MODULE)/*/*) .ci/runsc.sh
	@mkdir -p $(BIN)
	@echo "building gVisor's runsc: 1-2 minutes the first time"
	STOCK=$(STOCK) sh .ci/runsc.sh $(RUNSC_MODULE) $(CURDIR)/$@
	@touch $@

$(BIN)/runsc-stock: STOCK := 1

demo: build ## run the example task end to end in the embedded gVisor sandbox
	@sh examples/demo.sh

pictures: build ## make the pictures in docs again, from real runs; needs tmux and chromium
	@sh .ci/pictures.sh

test: build ## run all tests with what the machine has; INSTALL=1 brings an engine first
	@sh .ci/test.sh

race: build ## run all tests under the race detector (needs cgo: gcc or clang)
	@RACE=1 sh .ci/test.sh

lint: ## run the linters, pinned in .ci/tools (2 minutes to build, once)
	$(TOOL) golangci-lint run ./...

fmt: ## rewrite the code with gofumpt
	$(TOOL) golangci-lint fmt ./...

fuzz: ## fuzz each target for FUZZTIME (10s)
	@sh .ci/fuzz.sh

conformance: build ## run the sandbox conformance suite; BACKEND=docker|gvisor|runc picks one, RACE=1 the race detector
	@sh .ci/conformance.sh

e2e: build ## run the end-to-end tests with the built binaries
	@E2E_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 30m -v ./e2e/...

corpus: build ## run the tests of other people's evaluation tasks in their images; CAISSON_CORPUS names the directory
	@sh .ci/corpus.sh

injections: ## run public collections of prompt injections, which CAISSON_CORPUS has in injections/OWNER+NAME
	CAISSON_CORPUS=$(CAISSON_CORPUS) $(GO) test -tags corpus -count=1 -timeout 1h -run '^(TestCollections|TestInjectionCorpus|TestObedientModel)$$' ./loop/boundary ./loop/worker ./runner

skills: ## read public collections of skills, which CAISSON_CORPUS has in skills/OWNER+NAME
	CAISSON_CORPUS=$(CAISSON_CORPUS) $(GO) test -tags corpus -count=1 -v -run '^TestCollections$$' ./tools/skill

fresh: build ## run tests that depend on the machine in a new root file system with an engine of its own; root, INSTALL=1
	@sh .ci/fresh.sh

# A new version of an agent can need another definition: run it every night. The packages
# are those of e2e/testdata/agents, 1.2 GB.
agents: build ## run the newest agents from npm, with mocks for their models
	@sh .ci/agents.sh

# It takes 10 minutes and 3 GB of Go's build cache the first time.
deploy-test: build ## apply the manifests of examples/deploy and examples/ci to a Kubernetes API server, built from its module
	CGO_ENABLED=0 E2E_BIN=$(CURDIR)/$(BIN) $(GO) test -C .ci/deploy -tags apiserver -count=1 -timeout 2h -v -run '^TestAPIServer$$' .

bench: build $(BIN)/runsc-stock ## measure against host, engine and runtimes in one run; WRITE=1 writes docs/benchmarks.md
	@sh .ci/bench.sh

# It needs Go, npm and its registry, cargo, and Debian's python3-pytest and librust-itoa-dev.
projects: build ## run real projects with what caisson init writes, beside the host; PROJECT=go, BACKEND=docker pick some
	E2E_BIN=$(CURDIR)/$(BIN) $(GO) test -tags projects -count=1 -timeout 3h -v -run '^(TestProjects|TestForgedTestResult)$$' ./e2e

cover: build ## print the coverage of all packages
	@sh .ci/cover.sh

mutate: ## change the directory PKG in small ways and list the changes that its tests miss
	$(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash $(PKG)

vuln: ## look for known vulnerabilities in what is linked (needs the network)
	$(TOOL) govulncheck ./...

check: ## format, vet, lint, layers and short tests: what to run before a commit
	@sh .ci/check.sh

man: ## write the man pages of the commands to bin/man
	$(GO) test ./cmd/caisson -count=1 -run '^TestManPages$$' -man $(CURDIR)/$(BIN)/man

release: ## make dist: tar, deb, rpm, image, SBOM, sums and apt repository; ARCHS="amd64 arm64" both, IMAGE=0 no image
	@sh .ci/release.sh

release-test: ## build a release and install it in each way, as root with mmdebstrap and gpg
	$(GO) test -C .ci/release -tags release -count=1 -timeout 2h ./...

site: ## build the site from README.md and docs/ into dist/site; needs npm
	npm ci --prefix .ci/site --ignore-scripts --no-audit --no-fund
	npm run build --prefix .ci/site

clean: ## remove what the targets built
	rm -rf $(BIN) dist .ci/bin .ci/site/node_modules
