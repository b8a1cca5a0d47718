// Package sim runs a cluster in one process, in which one seed decides everything: what happens when, what
// is lost and what fails. The same seed tells the same story, byte for byte.
//
// A World is used by one goroutine, in a bubble of testing/synctest: time.Now is the simulated time, and
// passes only in World.Run. What runs in it starts no goroutine.
package sim
