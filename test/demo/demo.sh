#!/bin/bash
# demo.sh LAB: run PureLB's main job in the lab that is up. Leaves it running.
set -euo pipefail
lab=$1
here=$(dirname "$0")
root=$here/../..

k() { "$lab" kubectl -- "$@"; }
show() { echo; echo "\$ $*"; }

echo "installing PureLB: kubectl apply -k config/default"
k apply -k "$root/config/default" >/dev/null
k -n purelb-system rollout status deployment/purelb-manager --timeout=120s
echo "asking for agents, a pool and a Service: kubectl apply -f test/demo/demo.yaml"
k apply -f "$here/demo.yaml"
k -n purelb-system wait lbnodeagent/default --for=condition=Ready --timeout=120s
k rollout status deployment/echo --timeout=120s
k wait service/echo --for=condition=purelb.io/Announced --timeout=60s

followers() { k get announcements -n purelb-system -o 'jsonpath={.items[*].spec.standby.addresses[*].address}' | wc -w; }
echo "waiting until two nodes watch the holder of each address"
for _ in $(seq 50); do
	[ "$(followers)" -lt 4 ] || break
	sleep 0.2
done
k -n purelb-system wait announcements --all --for=condition=Ready --timeout=60s

v4=$(k get service echo -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')
v6=$(k get service echo -o 'jsonpath={.status.loadBalancer.ingress[1].ip}')
show kubectl describe service echo
k describe service echo
show kubectl get servicegroups,lbnodeagents -n purelb-system
k get servicegroups,lbnodeagents -n purelb-system

fetch() { # fetch HOST URL: one answer, waiting until kube-proxy knows the address
	for _ in $(seq 50); do
		"$lab" exec "$1" -- curl -gsS --max-time 2 "$2" 2>/dev/null && return
	done
	echo "no answer from $2" >&2
	"$lab" exec "$1" -- curl -gsS --max-time 2 "$2"
}
show "curl http://$v4/ # from the client on the nodes' link"
fetch client "http://$v4/"
show "curl http://[$v6]/"
fetch client "http://[$v6]/"
show "curl http://$v4/ # from the client behind the router"
fetch far "http://$v4/"
show kubectl get announcements -n purelb-system
k get announcements -n purelb-system
