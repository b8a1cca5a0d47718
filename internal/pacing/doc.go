// Package pacing holds the two ways in which PureLB waits, and Signal, which wakes.
//
// Batch waits because more is likely to come: requests that come together are served
// by one run, and work that takes long is done less often. Its first request after a
// rest is served almost at once.
//
// Backoff waits because something failed: each failure in a row doubles the wait, up
// to a bound, and a random part keeps those that failed together from trying again
// together.
//
// Neither type reads a clock or starts a timer: the caller passes the time and sleeps.
// What they remember is lost with the process; the next one starts without waiting.
//
// Rates are bounded by golang.org/x/time/rate, not here.
package pacing
