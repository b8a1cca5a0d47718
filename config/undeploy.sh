#!/bin/sh
# Removes PureLB, in an order that leaves nothing behind. It reads PureLB's manifests
# from standard input:
#
#     kubectl kustomize config/default | config/undeploy.sh
#
# It first deletes the LBNodeAgents: the manager lets each agent withdraw its
# addresses and then removes the agent. It does not wait for an agent that has not
# renewed its Lease for a minute. Where no manager is ready for a minute, nobody asks the agents: the
# nodes keep what they have, and the script says what to do there. Then it deletes everything else. Kubernetes deletes
# the manager's policies, which are not in any namespace, with the namespace, which
# owns them. The annotations say that both deletions are meant: without them the API
# server refuses to delete the last LBNodeAgent while addresses are in use, and the
# CustomResourceDefinitions.
set -eu
namespace=${NAMESPACE:-purelb-system}
kubectl=${KUBECTL:-kubectl}

hasManager() {
  [ -n "$($kubectl -n "$namespace" get deployment purelb-manager --ignore-not-found -o jsonpath='{.status.readyReplicas}')" ]
}

if $kubectl get crd lbnodeagents.purelb.io >/dev/null 2>&1; then
  $kubectl -n "$namespace" annotate lbnodeagents --all --overwrite purelb.io/allow-withdrawal=true >/dev/null
  left=${PATIENCE_SECONDS:-60}
  until hasManager || [ "$left" -le 0 ]; do
    sleep 2
    left=$((left - 2))
  done
  if hasManager; then
    echo "deleting the LBNodeAgents: the agents withdraw their addresses"
    $kubectl -n "$namespace" delete lbnodeagents --all --timeout=5m
  else
    echo "no manager is ready: deleting the LBNodeAgents although no agent withdraws its addresses. On each node" \
      "Local ones go after 5 minutes, and Virtual ones by: ip link delete kube-lb0" >&2
    $kubectl -n "$namespace" delete lbnodeagents --all --wait=false
    for agent in $($kubectl -n "$namespace" get lbnodeagents -o name); do
      $kubectl -n "$namespace" patch "$agent" --type=merge -p '{"metadata":{"finalizers":null}}'
    done
    $kubectl label nodes -l purelb.io/agent purelb.io/agent-
  fi
fi
for crd in $($kubectl get crd -o name | grep '/[a-z]*\.purelb\.io$'); do
  $kubectl annotate "$crd" --overwrite purelb.io/allow-deletion=true >/dev/null
done
$kubectl delete --ignore-not-found --timeout=5m -f -
