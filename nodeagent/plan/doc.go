// Package plan decides what the node agent does to the kernel, to its links and to the status
// of its Announcements. It is pure: no client, no netlink, no clock.
//
// Decide takes the Memory of the last decision and the Inputs of this one (the Announcements,
// the kernel as observed, what is held and yielded, the answers of links, the time), and
// returns the next Memory and a Decision: operations on the kernel in their order, questions
// for links, when to decide again. Conclude takes the Outcomes of these actions, and returns
// the statuses to report and the Local addresses to defend. Neither changes its arguments.
//
// The steps of a decision are decisionSteps in decide.go, each with the reason for its place.
// The base is Diff, which compares what is desired with what the kernel holds. The
// operations are applied in this order:
//
//  1. Add what the node claims from a silent one: no node answers for it.
//  2. Add what is in place with another mask, where the kernel can hold both.
//  3. Remove every address tagged as ours that is not desired where and as it is.
//  4. Replace what is in place with another mask or other flags.
//  5. Add what is missing. Local addresses for which the link has to be asked come last.
//  6. Renew what is in place and runs out, or whose settings changed, and first what ends first.
//     The agent renews for a while, decides anew, and then goes on.
//
// Diff remembers nothing: an address that the kernel holds, tagged, in the right place, is ours
// and announced, whichever process put it there and when. Only addresses tagged as ours are ever
// removed, and only from the interface on which they are tagged. The other steps amend the
// operations by what else is known.
//
// Defence is the machine of the listener, which has to react within milliseconds and so does
// not wait for a decision. It is told of each frame that claims a Local address and says, by the
// list Rules, whether to claim the address, to ask the station, or to yield the address to it.
//
// Where that is decided:
//   - Who notices that another station uses an address: the agent's defender reads the frames, and Hear in
//     defence_hear.go takes them. What the agent does about the station, the Rules in wire_rules.go decide.
//   - How long an old holder keeps its address when the new one has announced it: until its entry is gone
//     (difference.go). One that does not defend the address yields before that, when it hears the new one
//     (wire_rules.go). Where its agent is dead, its kernel keeps the address for defaultValidLifetime (durations.go).
package plan
