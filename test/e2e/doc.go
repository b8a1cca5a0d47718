// Package e2e tests PureLB as users run it: installed by its manifests in the lab's
// cluster of three real nodes, with clients that fetch from its addresses. The tests need root.
//
// There are three kinds of specs, told apart by labels:
//
//   - smoke: the gate. They say what happens (one node has the address, the address moves, the
//     previous holder yields, the address answers again) and never how fast, so they are green on
//     a busy machine, too.
//   - without smoke or proof: functions that the gate leaves out. make test-e2e runs both.
//   - proof, with a topic (failover, handover, outage, rollout, upgrade, bgp, ipam,
//     watching): experiments,
//     which measure in trials and judge figures.
//
// Specs depend on no order: each has a space of its own (a namespace, addresses, ServiceGroups and
// servers), which is removed when it ends, and before each PureLB is at rest. Still they run in the
// same order each time, unless PURELB_TEST_SEED says otherwise. When a spec fails, -evidence says
// where to find what the lab looked like then.
package e2e
