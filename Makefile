# PureLB. `make help` lists what there is.

IMG     ?= purelb.io/purelb:dev
ARCH    ?= $(shell go env GOARCH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Of the OLM bundle, whose image is IMG.
BUNDLE_VERSION ?= 0.1.0
BUNDLE_CHANNEL ?= candidate

TOOLS          := go tool -modfile=tools/go.mod
CONTROLLER_GEN := $(TOOLS) controller-gen
KUSTOMIZE      := $(TOOLS) kustomize
GOLANGCI_LINT  := bin/golangci-lint
LAB            := bin/lab
IMAGE_TAR      := dist/purelb-$(ARCH).tar
GO_PACKAGES    := ./api/... ./cmd/... ./config/... ./controllers/... ./internal/... ./nodeagent/... ./webhooks/...
# Modules of their own, beside the main one.
MODULES        := test/lab test/lab/kube test/e2e test/gitops test/scale test/bench tools tools/bundle

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ The two commands
.PHONY: demo
demo: lab-up ## Run PureLB in the lab: a Service, its addresses, a curl through them
	@test/demo/demo.sh $(LAB)

.PHONY: test
test: test-unit test-vm test-e2e ## Run all tests, those in the lab included
	@echo "make test: unit tests, those in the virtual machine and end-to-end tests passed"

##@ Tests
.PHONY: test-unit
test-unit: $(LAB) ## Run the tests of single packages, some against a real API server, as root
	@assets="$$($(LAB) assets)" && \
	echo "unit tests, with the API server of $$assets" && \
	KUBEBUILDER_ASSETS="$$assets" go test $(GO_PACKAGES) && \
	KUBEBUILDER_ASSETS="$$assets" go -C test/scale test ./... && \
	KUBEBUILDER_ASSETS="$$assets" go -C test/gitops test -timeout 20m ./... && \
	go -C test/lab test ./... && \
	go -C test/bench test ./... && \
	go -C tools/bundle test ./...

.PHONY: test-vm
test-vm: $(LAB) ## Run the tests against the kernel once more in a virtual machine, which has the link type dummy
	@mkdir -p bin && for package in . link neigh; do CGO_ENABLED=0 go test -c -ldflags "-s -w" -o bin/ ./nodeagent/$$package || exit 1; done
	@$(LAB) vm bin/link.test bin/neigh.test bin/nodeagent.test:"^TestWire(Quiet|Defend)"

# What to upgrade from: the last release before this commit, or the commit before.
PREVIOUS ?= $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || git rev-parse --verify --quiet HEAD^)

.PHONY: previous
previous:
	@test/e2e/previous.sh "$(PREVIOUS)" "$(ARCH)"

.PHONY: test-e2e
test-e2e: image previous $(LAB) ## Run the end-to-end tests in a lab of their own, as root (KEEP_LAB=1 keeps it)
	@$(LAB) down && $(LAB) up --image $(IMAGE_TAR) && \
	{ go -C test/e2e test -v -count=1 -timeout 30m . -ginkgo.v -ginkgo.fail-fast $(E2E_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

# What make bench measures, and how often. CASES is a regular expression; PROFILE=1
# writes profiles of bursts and of idling, too.
SECTIONS      ?= latency,availability,idle,burst,go
CASES         ?=
COUNT         ?= 50
TRIALS        ?= 10
SERVICES_IDLE ?= 0,500,1000
BURST         ?= 500,1000
SERVICES      ?= 1000

.PHONY: bench
bench: image $(LAB) ## Measure PureLB in a lab of its own, as root (SECTIONS=latency,availability,idle,burst,go TRIALS=10): docs/performance.md
	@assets="$$($(LAB) assets)" && \
	measure() { go -C test/bench run . run --sections "$(SECTIONS)" --cases "$(CASES)" --count $(COUNT) --trials $(TRIALS) \
	  --idle $(SERVICES_IDLE) --burst $(BURST) --services $(SERVICES) --assets "$$assets" $(if $(PROFILE),--profile); } && \
	if [ "$(SECTIONS)" = go ]; then measure; else \
	  $(LAB) down && $(LAB) up --image $(IMAGE_TAR) --node-grace-period 50s && \
	  { measure; status=$$?; if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; [ $$status = 0 ]; }; fi && \
	go -C test/bench run . report

.PHONY: bench-scale
bench-scale: build $(LAB) ## Measure with simulated nodes: NODES=100,300,1000 ADDRESSES=100,1000 SHAPES=flat,racks
	@assets="$$($(LAB) assets)" && go -C test/scale build -o $(CURDIR)/bin/scale . && \
	KUBEBUILDER_ASSETS="$$assets" bin/scale -root . -program bin/purelb -output dist/bench/scale.json \
	  -nodes $(if $(NODES),$(NODES),100,300,1000) -addresses $(if $(ADDRESSES),$(ADDRESSES),100,1000) -shapes $(or $(SHAPES),flat) $(SCALE_ARGS)

##@ Development
.PHONY: generate
generate: ## Generate Go code from the API types
	$(CONTROLLER_GEN) object paths=./api/...

.PHONY: manifests
manifests: ## Generate CRDs, RBAC and webhooks from the markers in the code
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=purelb-manager webhook paths="./controllers/...;./webhooks/...;./cmd/..." \
	  output:rbac:artifacts:config=config/rbac output:webhook:artifacts:config=config/webhook

.PHONY: bundle
bundle: ## Write the OLM bundle to bundle/ from config/ (IMG=… BUNDLE_VERSION=… BUNDLE_CHANNEL=…)
	go -C tools/bundle run . -root $(CURDIR) -version $(BUNDLE_VERSION) -channel $(BUNDLE_CHANNEL) -image $(IMG)

.PHONY: check-generate
check-generate: generate manifests bundle ## Fail if generated files or go.mod files are not up to date
	go mod tidy
	@for m in $(MODULES); do (cd $$m && go mod tidy) || exit 1; done
	@git diff --exit-code -- api config bundle bundle.Dockerfile go.mod go.sum $(MODULES) || { echo "Run make generate manifests bundle, and commit what it changes."; exit 1; }

.PHONY: fmt
fmt: ## Format the code
	gofmt -w api cmd config controllers nodeagent test tools webhooks

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Check the code, the directions of imports included
	$(GOLANGCI_LINT) run $(GO_PACKAGES)
	cd test/lab && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd test/e2e && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd test/bench && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd tools/bundle && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd test/gitops && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...
	cd test/scale && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...

$(GOLANGCI_LINT): tools/golangci-lint/go.mod
	@echo "building golangci-lint (some minutes the first time)"
	go -C tools/golangci-lint build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

##@ Build
.PHONY: build
build: ## Build bin/purelb
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb,purelb-$(ARCH)) ./cmd

.PHONY: image
image: build ## Write the image as an OCI archive to dist/, without Docker (ARCH=arm64 for another architecture)
	@mkdir -p dist
	go -C tools run ./image -o $(CURDIR)/$(IMAGE_TAR) -t $(IMG) -arch $(ARCH) -user 65532:65532 \
	  $(CURDIR)/bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb,purelb-$(ARCH))=/purelb
	@echo "wrote $(IMAGE_TAR)"

.PHONY: docker-build
docker-build: ## Build the image with Docker
	docker build --build-arg VERSION=$(VERSION) -t $(IMG) .

##@ Install, by KUBECONFIG
.PHONY: deploy
deploy: ## Install PureLB with image IMG
	@$(KUSTOMIZE) build config/default | sed 's|purelb.io/purelb:dev|$(IMG)|' | kubectl apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove PureLB: its agents give up their addresses first
	@$(KUSTOMIZE) build config/default | config/undeploy.sh

##@ Lab: three nodes in network namespaces, as root
.PHONY: lab-up
lab-up: image $(LAB) ## Bring the lab up, with the image in it, and print its KUBECONFIG
	@$(LAB) up --image $(IMAGE_TAR)

.PHONY: lab-down
lab-down: $(LAB) ## Remove the lab, whatever is left of it
	@$(LAB) down

.PHONY: $(LAB)
$(LAB):
	@go -C test/lab build -o $(CURDIR)/$(LAB) ./cmd/lab
