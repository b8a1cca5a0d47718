#!/bin/bash
# helm.sh LAB HELM IMAGE: lints the chart, and installs it in the lab that is up, in a namespace that is not the
# default one, with a CustomResourceDefinition as an older release might have it. It upgrades the release under
# requests, uninstalls it, and checks what is left.
set -euo pipefail
lab=$1 helm=$2 image=$3
root=$(dirname "$0")/../..
namespace=load-balancer
KUBECONFIG=$("$lab" kubeconfig)
export KUBECONFIG

k() { "$lab" kubectl -- "$@"; }
say() { echo; echo "== $*"; }
fail() { echo "test-helm: $*" >&2; exit 1; }
until_true() { # until_true WHAT COMMAND…: waits a minute
	what=$1; shift
	for _ in $(seq 120); do "$@" >/dev/null 2>&1 && return; sleep 0.5; done
	fail "not within a minute: $what"
}
chart=$root/charts/purelb
release() { "$helm" "$1" purelb "$chart" -n $namespace --set image.repository="${image%:*}" --set image.tag="${image##*:}" --wait --timeout 3m "${@:2}"; }

say "lint"
"$helm" lint --strict "$chart"

say "install, with a CustomResourceDefinition without the short name sgs"
older=$(mktemp -d)
trap 'rm -r "$older"' EXIT
cp -r "$chart" "$older/"
sed -i '/^    - sgs$/d' "$older/purelb/templates/customresourcedefinition-servicegroups.purelb.io.yaml"
short_names() { k get crd servicegroups.purelb.io -o 'jsonpath={.spec.names.shortNames}'; }
chart=$older/purelb
k create namespace $namespace
k label namespace $namespace pod-security.kubernetes.io/enforce=privileged
release install
chart=$root/charts/purelb
[ "$(short_names)" = '["sg"]' ] || fail "the older release has the short names $(short_names)"
sed "s/purelb-system/$namespace/" "$root/test/demo/demo.yaml" | k apply -f -
k -n $namespace wait lbnodeagent/default --for=condition=Ready --timeout=120s
k rollout status deployment/echo --timeout=120s
k wait service/echo --for=condition=purelb.io/Announced --timeout=60s
v4=$(k get service echo -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')
until_true "an answer from $v4" "$lab" exec client -- curl -gsS --max-time 2 "http://$v4/"

say "a value that does not exist is refused"
if refusal=$(release upgrade --set manager.replica=3 2>&1); then fail "manager.replica was accepted"; fi
grep -q replica <<<"$refusal" || fail "the refusal does not name it: $refusal"

say "upgrade: another flag, three managers, network policy"
before=$(k get service echo -o 'jsonpath={.metadata.annotations.purelb\.io/announcing-IPv4}')
bundle() { k get validatingwebhookconfiguration purelb-validating -o 'jsonpath={.webhooks[0].clientConfig.caBundle}'; }
[ -n "$(bundle)" ] || fail "the webhooks have no CA bundle"
release upgrade --set 'manager.extraArgs={--log-level=debug}' --set manager.replicas=3 --set networkPolicy.enabled=true
[ "$(short_names)" = '["sg","sgs"]' ] || fail "the upgrade leaves the CustomResourceDefinition with the short names $(short_names)"
[ -n "$(bundle)" ] || fail "the upgrade took the webhooks' CA bundle"
[ "$(k -n $namespace get deployment purelb-manager -o 'jsonpath={.status.readyReplicas}')" = 3 ] || fail "not three managers"
k -n $namespace get networkpolicy purelb-manager >/dev/null
k get deployment -n $namespace purelb-manager -o 'jsonpath={.spec.template.spec.containers[0].args}' | grep -q -- --log-level=debug || fail "the flag is not set"
[ "$(k get service echo -o 'jsonpath={.metadata.annotations.purelb\.io/announcing-IPv4}')" = "$before" ] || fail "the address moved: $before"
"$lab" exec client -- curl -gsS --max-time 2 "http://$v4/" >/dev/null
if k create --dry-run=server -f - 2>/dev/null <<<'{"apiVersion":"purelb.io/v1","kind":"ServiceGroup","metadata":{"name":"bad","namespace":"'$namespace'"},"spec":{"local":{"v4pools":[{"subnet":"10.77.0.0/24","pool":"10.99.0.1"}]}}}'; then
	fail "a pool outside its subnet was accepted"
fi

say "a second release is refused"
if "$helm" install again "$root/charts/purelb" -n default 2>/dev/null; then fail "a second release was installed"; fi

say "uninstall"
k -n $namespace annotate lbnodeagents --all purelb.io/allow-withdrawal=true
k -n $namespace delete lbnodeagents --all --timeout=2m
"$helm" uninstall purelb -n $namespace --wait --timeout 2m
for node in node1 node2 node3; do
	if "$lab" exec $node -- ip link show kube-lb0 2>/dev/null; then fail "$node still has kube-lb0"; fi
	if "$lab" exec $node -- ip address show to "$v4" | grep -q .; then fail "$node still has $v4"; fi
done
k get crd servicegroups.purelb.io >/dev/null || fail "the CustomResourceDefinitions are gone"
k -n $namespace get servicegroup default >/dev/null || fail "the ServiceGroup is gone"
for kind in validatingwebhookconfiguration clusterrole clusterrolebinding; do
	if k get $kind -o name | grep purelb; then fail "left behind: $kind"; fi
done
is_empty() { [ -z "$(k -n $namespace get all -o name)" ]; }
until_true "nothing is left in the namespace" is_empty

say "install once more: the Service has its address again"
release install
sed "s/purelb-system/$namespace/" "$root/test/demo/demo.yaml" | k apply -f - >/dev/null
k wait service/echo --for=condition=purelb.io/Announced --timeout=60s
[ "$(k get service echo -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')" = "$v4" ] || fail "it has another one"
until_true "an answer from $v4" "$lab" exec client -- curl -gsS --max-time 2 "http://$v4/"
echo "make test-helm: passed"
