#!/bin/sh
# Removes PureLB, in the order that leaves nothing behind. Its manifests come by
# standard input:
#
#     kubectl kustomize config/default | config/undeploy.sh
#
# Deleting the LBNodeAgents makes the agents give up their addresses, and waits
# for them (not for those that have not been heard of for a minute). Everything
# else has nothing to wait for then. What the manager has made for the whole
# cluster, its policies, is owned by the namespace and goes with it.
set -eu
namespace=${NAMESPACE:-purelb-system}
kubectl=${KUBECTL:-kubectl}

if $kubectl get crd lbnodeagents.purelb.io >/dev/null 2>&1; then
  echo "deleting the LBNodeAgents: agents give up their addresses"
  $kubectl -n "$namespace" delete lbnodeagents --all --timeout=5m
fi
$kubectl delete --ignore-not-found --timeout=5m -f -
