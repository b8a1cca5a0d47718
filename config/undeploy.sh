#!/bin/sh
# Removes PureLB, in an order that leaves nothing behind. It reads PureLB's manifests
# from standard input:
#
#     kubectl kustomize config/default | config/undeploy.sh
#
# It first deletes the LBNodeAgents: the manager lets each agent withdraw its
# addresses and then removes the agent. It does not wait for an agent that has not
# renewed its Lease for a minute. Then it deletes everything else. Kubernetes deletes
# the manager's policies, which are not in any namespace, with the namespace, which
# owns them. The annotations say that both deletions are meant: without them the API
# server refuses to delete the last LBNodeAgent while addresses are in use, and the
# CustomResourceDefinitions.
set -eu
namespace=${NAMESPACE:-purelb-system}
kubectl=${KUBECTL:-kubectl}

if $kubectl get crd lbnodeagents.purelb.io >/dev/null 2>&1; then
  echo "deleting the LBNodeAgents: the agents withdraw their addresses"
  $kubectl -n "$namespace" annotate lbnodeagents --all --overwrite purelb.io/allow-withdrawal=true >/dev/null
  $kubectl -n "$namespace" delete lbnodeagents --all --timeout=5m
fi
for crd in $($kubectl get crd -o name | grep '/[a-z]*\.purelb\.io$'); do
  $kubectl annotate "$crd" --overwrite purelb.io/allow-deletion=true >/dev/null
done
$kubectl delete --ignore-not-found --timeout=5m -f -
