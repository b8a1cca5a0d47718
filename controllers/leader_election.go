package controllers

import "time"

// LeaderLease is the name of the Lease by which the replicas elect their leader.
const LeaderLease = "manager.purelb.io"

// Durations of the leader election. The standby replaces a leader that stops at once, and a
// leader that dies LeaderLeaseDuration after the standby last saw the leader renew. The standby
// may see a renewal, and the expiry, one retry late each; a retry takes 1 to 2.2 LeaderRetryPeriods.
// So the standby leads after 6.2 s at the most, which lets a failover end within single-digit
// seconds even if the leader's node was also the holder of the address.
const (
	LeaderLeaseDuration = 4 * time.Second
	LeaderRenewDeadline = 3 * time.Second
	LeaderRetryPeriod   = 500 * time.Millisecond
)
