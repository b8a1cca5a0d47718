#!/bin/sh
# Checks what config/ installs with kubeconform (schemas) and kube-score (practices). The
# arguments are the programs kustomize, kubeconform and kube-score, and the folder with the
# module k8s.io/kubernetes, whose schemas are used.
set -eu
kustomize=$1 kubeconform=$2 score=$3 kubernetes=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go -C tools/scan run ./schemas -openapi "$kubernetes/api/openapi-spec/swagger.json" -output "$work/schemas" "$PWD"/config/crd/bases/*.yaml

status=0
cp -r config "$work/config"
KUBECTL=true "$work/config/install.sh" "$PWD/$kustomize" purelb.io/purelb:dev $(ls config/components)
for folder in config/default install config/samples config/samples/pool; do # install has all components
	manifest=$work/manifest-$(echo "$folder" | tr / -).yaml
	"$kustomize" build "$work/$folder" >"$manifest"
	echo "== kubeconform: $folder"
	# Kinds of cert-manager and of the Prometheus operator, whose schemas are not in this
	# repository.
	"$kubeconform" -summary -skip cert-manager.io/v1/Certificate,cert-manager.io/v1/Issuer,monitoring.coreos.com/v1/ServiceMonitor,monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/PrometheusRule \
		-schema-location "$work/schemas/{{.Group}}-{{.ResourceAPIVersion}}-{{.ResourceKind}}.json" "$manifest" || status=1
done

echo "== kube-score"
for manifest in "$work"/manifest-*.yaml; do
	"$score" score --kubernetes-version v1.32 --output-format ci "$manifest" || [ $? = 1 ] # 1 is for findings
done >"$work/score"
grep -cE '^\[OK\]' "$work/score" | sed 's/$/ checks passed/'
sed -nE 's/^\[(CRITICAL|WARNING)\] //p' "$work/score" | sort -u >"$work/found"
grep -vE '^(#|$)' tools/scan/kube-score.txt | sort -u >"$work/listed"
if ! diff "$work/listed" "$work/found"; then
	echo "kube-score found something else (>) than tools/scan/kube-score.txt lists (<)"
	status=1
fi
[ $status = 0 ] && echo "make scan: passed" || echo "make scan: findings"
exit $status
