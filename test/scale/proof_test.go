//go:build proof

package main

import "testing"

// TestProofScale measures a small cluster on a machine that has nothing else to do.
func TestProofScale(t *testing.T) {
	measureSmallCluster(t, programPath(t), bounds{
		"convergeMs":               {1, 60_000},
		"deathMs":                  {2_000, 60_000},
		"restartMs":                {1, 120_000},
		"restartRewritten":         {0, 4}, // not all
		"changeMs":                 {1, 60_000},
		"changeAnnouncementWrites": {5, 20},
		"requestsPerS":             {4, 1_000},
		"watchEventsPerS":          {4, 1_000},
		"apiServerCPUPerMin":       {0.1, 6_000},
	})
}
