# PureLB. `make help` lists the targets.

IMG     ?= purelb.io/purelb:dev
ARCH    ?= $(shell go env GOARCH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Version and channel of the OLM bundle. Its manifests name the image IMG.
BUNDLE_VERSION ?= 0.1.0
BUNDLE_CHANNEL ?= candidate

# Version of Kubernetes in the lab, such as v1.32.5; by default that of test/lab/kube/go.mod.
KUBERNETES ?=
# Mode of kube-proxy in the lab: nftables, iptables, ipvs or ipvs-strict-arp.
PROXY_MODE ?=
# Number of nodes in the lab, three by default.
LAB_NODES ?=

# What is compiled does not depend on the project's folder, so that a new clone uses what others compiled.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath)

# Targets build the tools that they need first, so that no tool is downloaded during a
# test, or while a program reads its output.
CONTROLLER_GEN := bin/controller-gen
KUSTOMIZE      := bin/kustomize
GOLANGCI_LINT  := bin/golangci-lint
CRD_REF_DOCS   := bin/crd-ref-docs
GOVULNCHECK    := bin/govulncheck
GREMLINS       := bin/gremlins
CRANE          := bin/crane
KUBECONFORM    := bin/kubeconform
KUBE_SCORE     := bin/kube-score
LAB            := bin/lab
IMAGE_TAR      := dist/purelb-$(ARCH).tar
LAB_ASSETS     := $(LAB) assets $(if $(KUBERNETES),--kubernetes $(KUBERNETES))
LAB_UP         := $(LAB) up --image $(IMAGE_TAR) $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) $(if $(PROXY_MODE),--proxy-mode $(PROXY_MODE)) $(if $(LAB_NODES),--nodes $(LAB_NODES))
# The modules beside the main one, without those that only pin a tool.
MODULES        := $(filter-out test/olm/programs tools/golangci-lint tools/gremlins tools/crd-ref-docs,$(patsubst %/go.mod,%,$(shell git ls-files '*/go.mod')))
# The modules that linters and govulncheck do not check: they have few files and import all of
# Kubernetes, which would have to be analysed, too.
ALL_KUBERNETES := test/lab/kube test/conformance/kube
CHECKED        := . $(filter-out $(ALL_KUBERNETES),$(MODULES))

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ The two commands
.PHONY: demo
demo: lab-up ## Run PureLB in the lab: a Service, its addresses, a curl through them
	@test/demo/demo.sh $(LAB)

# Which part of the gate runs: STEPS=pure,race,kernel,modules,vm,smoke. GATE_ARGS are further flags of
# tools/gate: -package ./controllers -run '^TestDrift$$', or -focus 'virtual' for specs of the lab.
STEPS     ?=
GATE_ARGS ?=
GATE       = bin/gate -root . $(if $(KUBERNETES),-kubernetes $(KUBERNETES)) $(if $(KEEP_LAB),-keep-lab)

.PHONY: bin/gate
bin/gate:
	@go -C tools build -o $(CURDIR)/bin/gate ./gate

.PHONY: test
test: bin/gate ## Run what a change must pass, lab included, as root, and leave all output in dist/test/COMMIT (STEPS=pure,race KEEP_LAB=1 GATE_ARGS=)
	@$(GATE) -steps "$(STEPS)" $(GATE_ARGS)

##@ Tests
.PHONY: test-fresh
test-fresh: ## Run make demo and make test in a clean clone with every cache empty, as root (KEEP_FRESH=1 keeps the folder)
	@test/fresh.sh

# Lists each package that has tests, and what the tests import. Those that start an API
# server or make network namespaces import one of SLOW_HELPERS.
TESTED       := {{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}{{end}}
SLOW_HELPERS := /test/apiserver\|/nstest\|/envtest
# The tests of nodeagent/neigh that only look at frames. PURELB_TEST_NETNS says that no
# network namespace is needed.
FRAME_TESTS  := TestFrames,TestEchoFrames,TestFramesOfTheOtherFamily,TestQuestionSender,TestParse,TestParseMACs,TestChecksum,TestCommonBits,FuzzParse,FuzzParseEcho,FuzzRoundTrip
comma        := ,

.PHONY: test-fast
test-fast: ## Run the tests that need neither root, nor an API server, nor the lab: less than a minute
	@packages="$$(go list -f '$(TESTED)' ./...)" && \
	go test -short $$(echo "$$packages" | grep -v '$(SLOW_HELPERS)' | cut -d' ' -f1) && \
	PURELB_TEST_NETNS=1 go test -short -run '^($(subst $(comma),|,$(FRAME_TESTS)))$$' ./nodeagent/neigh && \
	go -C test/bench test ./... && \
	go -C test/soak test ./... && \
	go -C tools test -count=1 ./...
	@echo "make test-fast: passed; make test-unit runs the others"

# The packages that decide. make test-mutation changes their code and runs their tests. Each
# is FOLDER or FOLDER:FILE,FILE:TEST,TEST. Of nodeagent/neigh it is the code of frames.
MUTATED   := controllers/agents controllers/allocation controllers/announced controllers/ipam controllers/partialwrite controllers/placement controllers/routing \
  internal/pacing nodeagent/neigh:frame.go,parse.go,question.go,echo.go:$(FRAME_TESTS) nodeagent/plan nodeagent/reach nodeagent/watch nodeagent/speaker/bfd nodeagent/speaker/routes
PACKAGES  ?= $(MUTATED)
SAMPLE    ?= 50
SEED      ?= 1
THRESHOLD ?= 95
# A package whose tests are tried on what survives a package's own: THEN=test/sim.
THEN      ?=

.PHONY: test-mutation
test-mutation: $(GREMLINS) ## Change operators of pure packages one at a time, and fail if tests notice less than 95 % (PACKAGES=controllers/agents SAMPLE=50|all SEED=1 THEN=test/sim)
	@go -C tools build -o $(CURDIR)/bin/mutation ./mutation
	@PURELB_TEST_NETNS=1 bin/mutation -gremlins $(GREMLINS) -equivalent tools/mutation/equivalent.txt -sample $(SAMPLE) -seed $(SEED) -threshold $(THRESHOLD) -then '$(THEN)' $(PACKAGES)

.PHONY: test-unit
test-unit: bin/gate ## Run the gate without the virtual machine and the lab, as root (KUBERNETES=v1.32.5; needs gcc for the race detector)
	@$(GATE) -steps pure,race,kernel,modules $(GATE_ARGS)

# How long make fuzz runs each fuzz target.
FUZZTIME ?= 30s

.PHONY: fuzz
fuzz: ## Run each fuzz target of every module for a while (FUZZTIME=30s)
	@git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's|^\(.*\)/[^/]*:func |\1 |' | { \
	n=0; while read -r folder target; do \
	  echo "== $$target in $$folder"; n=$$((n+1)); \
	  go -C $$folder test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) . </dev/null || exit 1; \
	done; echo "make fuzz: $$n targets, $(FUZZTIME) each"; [ $$n -gt 0 ]; }

.PHONY: test-release
test-release: $(KUSTOMIZE) $(CRANE) ## Make the release of HEAD twice, in clones at different places, and compare all bytes (ALL=1: of all platforms; SHARED_CACHE=1 is faster; TEST_RELEASE_FLAGS="RELEASE_ARCHES=arm64")
	@test/release.sh $(CURDIR)/$(KUSTOMIZE) $(CURDIR)/$(CRANE) $(if $(ALL),RELEASE_ARCHES=$(RELEASE_ARCHES) PLATFORMS=$(PLATFORMS)) $(TEST_RELEASE_FLAGS)

.PHONY: test-netbox
test-netbox: ## Run the tests of what PureLB relies on of NetBox, against a real one (NETBOX_URL=https://… NETBOX_TOKEN=…), or else the fake
	@go test -count=1 -timeout 60m -v -run '^Test(Contract|Conformance|RecordedFields|Refusals|PrefixInTwoVRFs|Selector|OtherMaskInRange|DuplicateOfAnother|OwnDuplicates|ReservedForTenant|FaultExtendedPool|FaultOlderRecord|FaultIncompleteRecord|FaultClonedRecord|FaultOrphanReleased|FaultOrphanOfTenant|AttackDescriptionOfOthers)$$' ./controllers/ipam/netbox

.PHONY: test-vm
test-vm: bin/gate ## Run the tests of the network code in a virtual machine with a kernel of Debian, which has more link types
	@$(GATE) -steps vm

.PHONY: test-smoke
test-smoke: bin/gate ## Run the gate's end-to-end specs in a lab of their own, as root (KEEP_LAB=1 GATE_ARGS="-focus virtual")
	@$(GATE) -steps smoke $(GATE_ARGS)

SEEDS ?= 1000
FIRST ?= 0
.PHONY: sim
sim: ## Play random histories of a cluster in one process (SEEDS=1000 FIRST=0, or KIND=leases|watching|one-at-a-time|two-links|clocks|routers|routers-one-at-a-time|slow-leases|slow-leases-one-at-a-time|netbox SEED=n to tell one)
	@SIM_SEEDS=$(SEEDS) SIM_FIRST=$(FIRST) SIM_SEED=$(SEED) SIM_KIND=$(KIND) GOGC=400 \
	  go test -tags simulate -count=1 -timeout 0 -run '^TestSimulate$$' -v ./test/sim

.PHONY: sim-costs
sim-costs: ## Count in one process what is written for each kind of event, in clusters of 8 to 32 nodes
	go test -tags simulate -count=1 -timeout 0 -run '^TestSimulateCosts$$' -v ./test/sim

# Programs of the packages run in a chroot: nothing is installed.
.PHONY: test-stacks
test-stacks: $(LAB) ## Run an agent beside systemd-networkd, NetworkManager and DHCP clients of Debian, as root
	@mkdir -p bin && go -C test/flannel build -o $(CURDIR)/bin/flannel-address . && \
	root="$$($(LAB) debian-root)" && export PURELB_DEBIAN_ROOT="$$root" PURELB_FLANNEL_ADDRESS=$(CURDIR)/bin/flannel-address && \
	go test -tags stacks -count=1 -timeout 30m -v -run '^TestStack' ./nodeagent

.PHONY: test-bgp
test-bgp: ## Run the speaker's BGP against FRR, BIRD and ExaBGP of Debian (apt-get install frr bird2 exabgp), in network namespaces, as root
	go test -tags routers -count=1 -v ./nodeagent/speaker/gobgp

# The version from which the upgrade test upgrades: the last release before this commit,
# or else the previous commit.
PREVIOUS ?= $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || git rev-parse --verify --quiet HEAD^)

.PHONY: previous
previous: $(KUSTOMIZE)
	@test/e2e/previous.sh "$(PREVIOUS)" "$(ARCH)"

# Which end-to-end specs make test-e2e runs: all but the experiments, what leaves a cluster in disorder, an hour of
# watching, and the scenarios of the simulation.
E2E_LABELS ?= !proof && !restore && !hour && !twin

.PHONY: test-e2e
test-e2e: image kubectl-purelb previous $(LAB) ## Run all end-to-end specs but the experiments in a lab of their own, as root (KEEP_LAB=1 keeps it, KUBERNETES=v1.32.5 PROXY_MODE=iptables)
	@$(LAB) down && $(LAB_UP) && \
	{ go -C test/e2e test -v -count=1 -timeout 2h . -ginkgo.v -ginkgo.timeout=100m -ginkgo.label-filter='$(E2E_LABELS)' $(E2E_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

.PHONY: test-restore
test-restore: ## Restore etcd from a backup, in a lab of its own, as root: most other programs of the cluster do not notice
	@$(MAKE) --no-print-directory test-e2e E2E_LABELS=restore

# Which scenarios make test-twin plays: those whose names match.
SCENARIO ?=

.PHONY: test-twin
test-twin: ## Play the scenarios of test/twin in a lab of their own, as root, and compare with the simulation's records (SCENARIO=power-cut KEEP_LAB=1)
	@$(MAKE) --no-print-directory test-e2e E2E_LABELS=twin E2E_ARGS="$(SCENARIO:%=-ginkgo.focus='simulation: %') $(E2E_ARGS)"

# For how long make test-monitoring watches that no alert fires.
HEALTHY ?= 1h

.PHONY: test-monitoring
test-monitoring: ## Have Debian's Prometheus scrape the lab, as root: alerts, the dashboard and its picture, a healthy hour (HEALTHY=10m)
	@E2E_HEALTHY=$(HEALTHY) $(MAKE) --no-print-directory test-e2e E2E_LABELS=monitoring \
	  E2E_ARGS='-dashboard-picture $(CURDIR)/docs/images/dashboard.svg $(E2E_ARGS)'

.PHONY: nightly
nightly: ## Run the unit tests and all end-to-end specs with random choices that were not made before, and print the seed
	@export PURELB_TEST_SEED=$${PURELB_TEST_SEED:-$$(date +%s)} && echo "PURELB_TEST_SEED=$$PURELB_TEST_SEED" && \
	{ $(MAKE) test-unit GATE_ARGS=-long; unit=$$?; $(MAKE) test-e2e && exit $$unit; }

# The client that make test-kubectl tests with: two minor versions older than the API server.
KUBECTL_VERSION ?= v1.35.4

.PHONY: test-kubectl
test-kubectl: ## Run the end-to-end tests with another kubectl than the API server's, as root (KUBECTL_VERSION=v1.34.2 KUBERNETES=v1.32.5)
	@mkdir -p bin && test/kubectl/build.sh $(KUBECTL_VERSION) bin/kubectl-$(KUBECTL_VERSION)
	@$(MAKE) test-e2e E2E_ARGS='-kubectl $(CURDIR)/bin/kubectl-$(KUBECTL_VERSION) $(E2E_ARGS)'
	@echo "make test-kubectl: passed with kubectl $(KUBECTL_VERSION)"

.PHONY: test-olm
test-olm: $(LAB) ## Install, upgrade and remove PureLB with the Operator Lifecycle Manager, in a lab of its own, as root (KEEP_LAB=1 keeps it)
	@test/olm/prepare.sh $(ARCH) && $(LAB) down && $(LAB) up $$(printf -- '--image %s ' dist/olm/*.tar) && \
	{ go -C test/olm test -v -count=1 -timeout 60m . -ginkgo.v -ginkgo.fail-fast $(OLM_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

# The helm that make test-helm runs.
HELM_VERSION ?= v3.22.0

.PHONY: test-helm
test-helm: image $(LAB) ## Install, upgrade and uninstall the Helm chart, in a lab of its own, as root (KEEP_LAB=1 keeps it, HELM_VERSION=v3.22.0)
	@GOBIN=$(CURDIR)/bin go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION) && $(LAB) down && $(LAB_UP) && \
	{ test/helm/helm.sh $(LAB) bin/helm $(IMG); status=$$?; if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

# What make test-conformance runs: variants of using PureLB, families of addresses, specs whose
# name in the table matches FOCUS. CONFORMANCE_ARGS are further flags: -slow, -probe, -parallel 6.
VARIANTS ?= local,allow-local,virtual
FAMILIES ?= ipv4,dual
FOCUS    ?=

# These are the flags of the lab's own build of Kubernetes, so that Go compiles it only once.
KUBERNETES_BUILD := -trimpath -buildvcs=false -ldflags '-s -w'

.PHONY: conformance-programs
conformance-programs:
	@mkdir -p bin dist/conformance
	@echo "building Kubernetes' tests (some minutes the first time)"
	@cd test/conformance/kube && export CGO_ENABLED=0 && \
	go test -c -vet=off $(KUBERNETES_BUILD) -o $(CURDIR)/bin/conformance.test . && \
	go build $(KUBERNETES_BUILD) -o $(CURDIR)/bin/agnhost k8s.io/kubernetes/test/images/agnhost
	@go -C test/conformance build -o $(CURDIR)/bin/conformance .
	@[ dist/conformance/agnhost.tar -nt bin/agnhost ] || test/conformance/image.sh bin/conformance.test bin/agnhost dist/conformance/agnhost.tar

.PHONY: test-conformance
test-conformance: image $(LAB) conformance-programs ## Run Kubernetes' own tests of LoadBalancer Services in a lab of their own, as root (VARIANTS=local FAMILIES=dual FOCUS=affinity): test/conformance
	@$(LAB) down && $(LAB) up --image $(IMAGE_TAR) --image dist/conformance/agnhost.tar && \
	{ bin/conformance -variants "$(VARIANTS)" -families "$(FAMILIES)" -focus "$(FOCUS)" $(CONFORMANCE_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

# How long make soak goes on. SEED repeats a sequence of actions; without one it is any.
DURATION ?= 30m

.PHONY: soak
soak: image $(LAB) ## Disturb PureLB at random in a lab of its own, as root, and check its promises (DURATION=30m SEED=… SOAK_ARGS=)
	@go -C test/soak build -o $(CURDIR)/bin/soak . && \
	$(LAB) down && $(LAB) up --image $(IMAGE_TAR) && \
	{ bin/soak --root . --out dist/soak --duration $(DURATION) $(if $(filter command environment,$(firstword $(origin SEED))),--seed $(SEED)) $(SOAK_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

# The modes of kube-proxy that make test-proxies tries. A kernel without IPVS is an error.
PROXY_MODES ?= nftables,iptables,ipvs-strict-arp

.PHONY: test-proxies
test-proxies: image $(LAB) ## Run the end-to-end tests that depend on kube-proxy with kube-proxy in each mode, as root (PROXY_MODES=iptables)
	@for mode in $(subst $(comma), ,$(PROXY_MODES)); do \
	  echo "== kube-proxy in mode $$mode"; \
	  $(LAB) down && $(LAB_UP) --proxy-mode $$mode && \
	  go -C test/e2e test -v -count=1 -timeout 30m . -ginkgo.v -ginkgo.label-filter=proxy $(E2E_ARGS) || failed="$$failed $$mode"; \
	  $(LAB) down; \
	done; [ -z "$$failed" ] || { echo "make test-proxies: failed with kube-proxy in mode:$$failed"; exit 1; }
	@echo "make test-proxies: passed with kube-proxy in mode $(PROXY_MODES)"

# What make bench measures, and how often. CASES is a regular expression of cases.
# PROFILE=1 also writes profiles of bursts and of idle programs.
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
bench-scale: build $(LAB) ## Measure PureLB with simulated nodes: NODES=100,300,1000 ADDRESSES=100,1000 SHAPES=flat,racks
	@assets="$$($(LAB) assets)" && go -C test/scale build -o $(CURDIR)/bin/scale . && \
	KUBEBUILDER_ASSETS="$$assets" bin/scale -root . -program bin/purelb -output dist/bench/scale.json \
	  -nodes $(if $(NODES),$(NODES),100,300,1000) -addresses $(if $(ADDRESSES),$(ADDRESSES),100,1000) -shapes $(or $(SHAPES),flat) $(SCALE_ARGS)

.PHONY: bench-writes
bench-writes: $(LAB) ## Measure what one write of each kind takes of the API server and of etcd, five times
	@assets="$$($(LAB) assets)" && KUBEBUILDER_ASSETS="$$assets" \
	  go -C test/scale test -run '^$$' -bench '^BenchmarkWrite$$' -benchtime 500x -count 5 .

# The patches of test/regressions that make test-regressions tries; all, if it is empty.
PATCHES ?=

.PHONY: test-regressions
test-regressions: $(LAB) $(KUSTOMIZE) ## Break the product in known ways, in a copy, and fail if the gate does not notice (PATCHES="no-gratuitous-arp wrong-*")
	@go -C tools build -o $(CURDIR)/bin/regressions ./regressions && bin/regressions -root $(CURDIR) $(PATCHES)

##@ Proofs: experiments of TRIALS trials each, as root, with results in dist/proof
PROOF := bin/proof
# The topics of the experiments in test/e2e, which have the labels proof and one of these.
TOPICS := failover handover outage rollout upgrade bgp ipam watching
# What others have written, or what disturbs at random, and runs as a whole.
JUDGES := proof-memory test-conformance test-olm test-stacks test-bgp soak

# $(call prove,FILE,ARGUMENTS,WANTS,TARGET) runs what follows and keeps in dist/proof/FILE.json what it
# shows, as the result of make TARGET ARGUMENTS: test/proof. TARGET is FILE if it is not given.
prove = $(PROOF) run -results 'dist/proof/$(1).json' -command "$(strip make $(or $(4),$(1)) $(2))" -commit "$(VERSION)" -wants "$(3)" --

.PHONY: proof
proof: $(PROOF) ## Run all experiments and make proof-memory test-conformance test-olm test-stacks test-bgp soak, and write the table of docs/proof.md (TRIALS=10 SEED=1 DURATION=30m); hours
	@rm -f $(foreach target,$(TOPICS:%=proof-%) $(JUDGES),dist/proof/$(target).json)
	-@for topic in $(TOPICS); do $(MAKE) --no-print-directory proof-$$topic; done
	-@$(MAKE) --no-print-directory proof-memory
	-@$(call prove,test-conformance,,) $(MAKE) --no-print-directory test-conformance
	-@$(call prove,test-olm,,tests) $(MAKE) --no-print-directory test-olm
	-@$(call prove,test-stacks,,tests) $(MAKE) --no-print-directory test-stacks
	-@$(call prove,test-bgp,,tests) $(MAKE) --no-print-directory test-bgp
	-@$(call prove,soak,SEED=$(SEED) DURATION=$(DURATION),experiments) $(MAKE) --no-print-directory soak SEED=$(SEED) DURATION=$(DURATION) \
	  SOAK_ARGS='--results $(CURDIR)/dist/proof/soak.json $(SOAK_ARGS)'
	@$(PROOF) table -page docs/proof.md $(foreach target,$(TOPICS:%=proof-%) $(JUDGES),dist/proof/$(target).json)

.PHONY: proof-table
proof-table: $(PROOF) ## Write what is in dist/proof into the tables of docs/proof.md and docs/routers.md; rows of other commands stay
	@$(PROOF) table -page docs/proof.md $(if $(wildcard dist/proof/*.json),dist/proof/*.json)

proof-failover: ## Measure how long addresses are away when their holders die (TRIALS=10 SEED=1)
proof-handover: ## Measure what planned changes of holder cost
proof-outage: ## Measure what it costs that the API server is away, and agents and managers die
proof-rollout: ## Measure what rollouts of agents, managers and endpoints cost
proof-upgrade: ## Measure what an upgrade from the previous version costs
proof-bgp: ## Measure what changes of speakers, nodes and endpoints cost behind a BGP router
proof-ipam: ## Measure what it costs that NetBox is away, and managers die while they ask it
proof-watching: ## Measure failover while nodes watch each other (ROWS=cut.off runs those whose text matches; FEATURE_GATES=SlowLeases=true)

# Of three nodes, two of which die, the last one has no other node that could be its witness.
proof-watching: LAB_NODES := 4

.PHONY: $(TOPICS:%=proof-%)
$(TOPICS:%=proof-%): proof-%: $(PROOF)
	@$(call prove,$@$(ROWS:%=-%),TRIALS=$(TRIALS) SEED=$(SEED)$(FEATURE_GATES:%= FEATURE_GATES=%)$(ROWS:%= ROWS=%),experiments,$@) \
	  $(MAKE) --no-print-directory experiments TOPIC=$* LAB_NODES=$(LAB_NODES) RESULTS='$@$(ROWS:%=-%)'

.PHONY: proof-memory
proof-memory: build $(LAB) $(PROOF) ## Measure how much memory the programs need while others do their worst, as root (TRIALS=10 SEED=1 for agent and speaker)
	@assets="$$($(LAB) assets)" && export PURELB=$(CURDIR)/bin/purelb PURELB_SPEAKER=$(CURDIR)/bin/purelb-speaker KUBEBUILDER_ASSETS="$$assets" \
	  TRIALS=$(TRIALS) PURELB_TEST_SEED=$(SEED) && $(call prove,$@,TRIALS=$(TRIALS) SEED=$(SEED),tests) \
	  go -C test/scale test -tags proof -count=1 -timeout 0 -run TestProofMemory -v .

# All cells take most of a day: ROWS chooses.
.PHONY: proof-routers
proof-routers: TRIALS := 5
proof-routers: JOBS := 1
proof-routers: build $(LAB) $(PROOF) ## Measure what happens to sessions with routers, in network namespaces, as root (TRIALS=5 SEED=1 JOBS=1 DURATION=30m ROWS=killed..FRR; apt-get install frr bird2)
	@assets="$$($(LAB) assets)" && export PURELB=$(CURDIR)/bin/purelb PURELB_SPEAKER=$(CURDIR)/bin/purelb-speaker KUBEBUILDER_ASSETS="$$assets" \
	  TRIALS=$(TRIALS) PURELB_TEST_SEED=$(SEED) DURATION=$(DURATION) && \
	$(call prove,$@$(ROWS:%=-%),TRIALS=$(TRIALS) SEED=$(SEED) JOBS=$(JOBS) DURATION=$(DURATION)$(ROWS:%= ROWS=%),experiments,$@) \
	  go test -tags routers -count=1 -timeout 0 -run TestProofRouters -v ./nodeagent/speaker/matrix \
	  -jobs $(JOBS) -rows '$(ROWS)' -proof-results '$(CURDIR)/dist/proof/$@$(ROWS:%=-%).json'

# Runs the experiments of a TOPIC in a lab of their own. Ginkgo's own limit of an hour is too short.
.PHONY: experiments
experiments: image kubectl-purelb previous $(LAB)
	@$(LAB) down && $(LAB_UP) && \
	{ E2E_TRIALS=$(TRIALS) PURELB_TEST_SEED=$(SEED) E2E_FEATURE_GATES=$(FEATURE_GATES) go -C test/e2e test -v -count=1 -timeout 0 . -ginkgo.v -ginkgo.timeout=72h \
	    -ginkgo.label-filter='proof && $(TOPIC)' -proof-results '$(CURDIR)/dist/proof/$(RESULTS).json' $(ROWS:%=-ginkgo.focus='%') $(E2E_ARGS); status=$$?; \
	  if [ -z "$(KEEP_LAB)" ]; then $(LAB) down; fi; exit $$status; }

.PHONY: $(PROOF)
$(PROOF):
	@go build -o $(PROOF) ./test/proof

##@ Development
.PHONY: generate
generate: $(CONTROLLER_GEN) ## Generate Go code from the API types
	$(CONTROLLER_GEN) object paths=./api/...

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## Generate CRDs, RBAC and webhooks from the markers in the code
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=purelb-manager webhook paths="./controllers/...;./webhooks/...;./cmd/..." \
	  output:rbac:artifacts:config=config/rbac output:webhook:artifacts:config=config/webhook

.PHONY: bundle
bundle: ## Write the OLM bundle to bundle/ from config/ (IMG=… BUNDLE_VERSION=… BUNDLE_CHANNEL=…)
	go -C tools/bundle run . -root $(CURDIR) -version $(BUNDLE_VERSION) -channel $(BUNDLE_CHANNEL) -image $(IMG)

.PHONY: chart
chart: ## Write the Helm chart to charts/purelb from config/ (IMG=… BUNDLE_VERSION=…)
	go -C tools/bundle run ./chart -root $(CURDIR) -version $(BUNDLE_VERSION) -image $(IMG)

API_REFERENCE := docs/reference/api.md

.PHONY: api-reference
api-reference: $(CRD_REF_DOCS) ## Write docs/reference/api.md from the API types
	$(CRD_REF_DOCS) --log-level=ERROR --source-path=api/v1 --config=tools/crd-ref-docs/config.yaml \
	  --templates-dir=tools/crd-ref-docs/templates --renderer=markdown --output-path=$(API_REFERENCE)

# The files that generate, manifests, bundle, chart, api-reference and go mod tidy write.
GENERATED := api config bundle bundle.Dockerfile charts $(API_REFERENCE) go.mod go.sum $(foreach m,$(MODULES),$(m)/go.mod $(m)/go.sum)

.PHONY: check-generate
check-generate: generate manifests bundle chart api-reference ## Fail if generated files or go.mod files are not up to date
	go mod tidy
	@for m in $(MODULES); do (cd $$m && go mod tidy) || exit 1; done
	@git diff --exit-code -- $(GENERATED) && untracked="$$(git ls-files --others --exclude-standard -- $(GENERATED))" && \
	{ [ -z "$$untracked" ] || { echo "not in git:"; echo "$$untracked"; false; }; } || \
	{ echo "Run make generate manifests bundle chart api-reference, and commit what it changes."; exit 1; }

.PHONY: fmt
fmt: ## Format the code
	find . \( -path ./bin -o -path ./dist -o -path ./.git \) -prune -o -name '*.go' -exec gofmt -w {} +

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Lint every module: code, format and the direction of imports; and the messages of commits
	@for m in $(CHECKED); do echo "lint $$m"; \
	  (cd $$m && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...) || failed="$$failed $$m"; done; \
	[ -z "$$(gofmt -l $(ALL_KUBERNETES))" ] || failed="$$failed $(ALL_KUBERNETES) (make fmt)"; \
	go -C tools run ./commits || failed="$$failed commits"; \
	[ -z "$$failed" ] || { echo "make lint: findings in:$$failed"; exit 1; }

# The database of known vulnerabilities. make vulncheck fails without access to it.
GOVULNDB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: $(GOVULNCHECK) ## Find known vulnerabilities that the code of any module reaches (GOVULNDB=… for a copy of the database)
	@for m in $(CHECKED); do echo "vulncheck $$m"; $(GOVULNCHECK) -db $(GOVULNDB) -C $$m ./... || failed="$$failed $$m"; done; \
	[ -z "$$failed" ] || { echo "make vulncheck: vulnerable, or not checked because the database cannot be reached:$$failed"; exit 1; }

.PHONY: scan
scan: $(KUSTOMIZE) $(KUBECONFORM) $(KUBE_SCORE) ## Check the manifests with kubeconform and kube-score; what stays is in tools/scan/kube-score.txt
	@cd test/lab/kube && go mod download k8s.io/kubernetes
	@tools/scan/scan.sh $(KUSTOMIZE) $(KUBECONFORM) $(KUBE_SCORE) "$$(go -C test/lab/kube list -m -f '{{.Dir}}' k8s.io/kubernetes)"

$(KUBECONFORM): tools/scan/go.mod
	go -C tools/scan build -o $(CURDIR)/$@ github.com/yannh/kubeconform/cmd/kubeconform

$(KUBE_SCORE): tools/scan/go.mod
	go -C tools/scan build -o $(CURDIR)/$@ github.com/zegl/kube-score/cmd/kube-score

$(CRANE): tools/go.mod
	go build -modfile=tools/go.mod -o $@ github.com/google/go-containerregistry/cmd/crane

$(CONTROLLER_GEN): tools/go.mod
	go build -modfile=tools/go.mod -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(KUSTOMIZE): tools/go.mod
	go build -modfile=tools/go.mod -o $@ sigs.k8s.io/kustomize/kustomize/v5

$(GOVULNCHECK): tools/go.mod
	go build -modfile=tools/go.mod -o $@ golang.org/x/vuln/cmd/govulncheck

$(GREMLINS): tools/gremlins/go.mod
	go -C tools/gremlins build -o $(CURDIR)/$@ github.com/go-gremlins/gremlins/cmd/gremlins

$(CRD_REF_DOCS): tools/crd-ref-docs/go.mod
	go -C tools/crd-ref-docs build -o $(CURDIR)/$@ github.com/elastic/crd-ref-docs

$(GOLANGCI_LINT): tools/golangci-lint/go.mod
	@echo "building golangci-lint (some minutes the first time)"
	go -C tools/golangci-lint build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

##@ Build
.PHONY: build
build: ## Build bin/purelb and bin/purelb-speaker
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb,purelb-$(ARCH)) ./cmd
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb-speaker,purelb-speaker-$(ARCH)) ./cmd/speaker

# The platforms of make plugin.
PLATFORMS ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64

.PHONY: kubectl-purelb
kubectl-purelb: ## Build bin/kubectl-purelb, the plugin of kubectl, for this machine
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/kubectl-purelb ./cmd/kubectl-purelb

.PHONY: plugin
plugin: ## Write archives of the plugin for each platform, checksums and a Krew manifest to dist/plugin (PLATFORMS=linux/amd64)
	@go -C tools run ./plugin -root $(CURDIR) -out $(CURDIR)/dist/plugin -version $(VERSION) -platforms $(PLATFORMS)

# The Go that compiles releases, exactly: another one makes other bytes.
RELEASE_GO     ?= go1.26.8
RELEASE_IMAGE  ?= ghcr.io/purelb/purelb-operator
RELEASE_ARCHES ?= amd64,arm64

.PHONY: release-dry-run
release-dry-run: $(KUSTOMIZE) ## Write all that a release consists of to dist/release, and push and sign nothing (VERSION=1.2.3 RELEASE_IMAGE=… RELEASE_ARCHES=amd64 PLATFORMS=linux/amd64)
	@GOTOOLCHAIN=$(RELEASE_GO) go -C tools run ./release -root $(CURDIR) -out $(CURDIR)/dist/release -version "$(VERSION)" \
	  -image $(RELEASE_IMAGE) -arches $(RELEASE_ARCHES) -platforms $(PLATFORMS) -channel $(BUNDLE_CHANNEL) -kustomize $(CURDIR)/$(KUSTOMIZE) \
	  -time $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct)) -revision $(shell git describe --always --abbrev=40 --dirty --exclude '*')
	@echo "wrote dist/release:" && ls dist/release

.PHONY: image
image: build ## Write the image as an OCI archive to dist/, without Docker (ARCH=arm64 for another architecture)
	@mkdir -p dist
	go -C tools run ./image -o $(CURDIR)/$(IMAGE_TAR) -t $(IMG) -arch $(ARCH) -user 65532:65532 -authorities \
	  $(CURDIR)/bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb,purelb-$(ARCH))=/purelb \
	  $(CURDIR)/bin/$(if $(filter $(ARCH),$(shell go env GOARCH)),purelb-speaker,purelb-speaker-$(ARCH))=/purelb-speaker
	@echo "wrote $(IMAGE_TAR)"

.PHONY: docker-build
docker-build: ## Build the image with Docker
	docker build --build-arg VERSION=$(VERSION) -t $(IMG) .

##@ Install into the cluster of KUBECONFIG
# Components of config/components that make deploy adds, such as COMPONENTS="cert-manager prometheus".
COMPONENTS ?=
# Flags of the manager that make deploy adds, such as MANAGER_ARGS="--default-load-balancer=false --log-level=debug".
MANAGER_ARGS ?=
export MANAGER_ARGS

.PHONY: deploy
deploy: $(KUSTOMIZE) ## Install or upgrade PureLB (IMG=… COMPONENTS="cert-manager prometheus" MANAGER_ARGS=--log-level=debug); what was chosen before is in install/
	@config/install.sh $(CURDIR)/$(KUSTOMIZE) "$(if $(filter command environment,$(firstword $(origin IMG))),$(IMG))" $(COMPONENTS)
	@$(KUSTOMIZE) build install | kubectl apply --server-side -f -

.PHONY: undeploy
undeploy: $(KUSTOMIZE) ## Remove PureLB: its agents withdraw their addresses first
	@$(KUSTOMIZE) build $(if $(wildcard install/kustomization.yaml),install,config/default) | config/undeploy.sh

##@ Lab: three nodes in network namespaces, as root
.PHONY: lab-up
lab-up: image $(LAB) ## Start the lab with the image loaded, and print its KUBECONFIG (KUBERNETES=v1.32.5 PROXY_MODE=iptables LAB_NODES=4)
	@$(LAB_UP)

.PHONY: lab-down
lab-down: $(LAB) ## Remove the lab, or what is left of it
	@$(LAB) down

# There is one lab on a machine: whoever uses it has it locked, and others wait.
experiments test-e2e test-olm test-conformance soak test-proxies bench lab-up lab-down: private SHELL = test/lab/locked.sh

.PHONY: $(LAB)
$(LAB):
	@go -C test/lab build -o $(CURDIR)/$(LAB) ./cmd/lab
