// Package trial judges experiments: things that are tried several times, because what they
// measure differs from time to time.
//
// An Experiment has Trials. Each has figures, the errors that were seen, the invariants that
// it broke, and how late the machine was meanwhile. Judge says what came of them:
//
//   - A trial that broke an invariant makes the experiment red, at once, also on a late
//     machine: an invariant says what happens, not how fast.
//   - A trial in which the machine was later than TooLate is inconclusive, as its figures show
//     the machine, unless it was at most 100 ms late and all bounds hold even if each time was as much
//     longer as the machine was late. An inconclusive trial is repeated, as often as trials were wanted and
//     no more. An experiment without enough conclusive trials then is inconclusive, which is red as well.
//   - Where trials on a late machine count, an experiment is inconclusive, too, when one in five trials breaks a
//     bound, those on a late machine included: else late trials would count only if they are good. Judge
//     counts a late trial neither way if its bounds hold as it was measured, and not once the lateness is
//     added to its times.
//   - A conclusive trial breaks a bound when a figure is above it, or was not measured. The
//     experiment is red when one in five conclusive trials breaks one: two of ten, one of two.
//   - When enough trials were conclusive, the median of a figure may have a bound of its own,
//     which makes the experiment red at once. Times of trials on a late machine are as much longer in it.
//
// The package reads no clock, and files only where a function says so.
package trial
