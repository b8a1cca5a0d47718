package plan

// Statement is how a station says that it has an address.
type Statement int

// Statements.
const (
	// StatementAnswer is the answer to a question of this agent.
	StatementAnswer Statement = iota
	// StatementUse is an ordinary ARP packet with the address as its sender, or an answer to a
	// question that this agent did not ask. It is a claim as well (RFC 5227 section 2.4).
	StatementUse
	// StatementAnnouncement is gratuitous: it makes the stations on the link change their caches.
	StatementAnnouncement
)

// Hearing is a frame in which another station says that it has a Local address that
// the node holds, and what the agent knows of both.
type Hearing struct {
	Statement Statement
	// IsAgentFresh means that the agent renewed its Lease lately, and so knows that the node is to
	// have the address.
	IsAgentFresh bool
	// IsUndefended means that the node is to hand the address over, or that nothing asks for it: the
	// node holds the address, and the agent does not defend it.
	IsUndefended bool
	// IsGateway means that the station is a default gateway, which may answer for every address
	// as a proxy (RFC 1027).
	IsGateway bool
	// IsPreviousHolder means that the station is the previous holder, from which the node took the
	// address over lately although its kernel may go on answering.
	IsPreviousHolder bool
	// HasAnsweredSinceFresh means that the station answered while the agent was fresh, and has gone on
	// answering since.
	HasAnsweredSinceFresh bool
	// IsAsked means that the agent has just asked this station by itself for the address.
	IsAsked bool
	// IsProvisional means that the node has claimed the address from a silent node, and does not
	// know yet whether it is to have it.
	IsProvisional bool
	// HasHigherEpoch means that the station is of a node that may claim the address under a higher epoch
	// than the node has it, and HasLowerEpoch that it is of one that may claim it under a lower epoch.
	HasHigherEpoch, HasLowerEpoch bool
}

// defends reports whether the agent defends the address.
func (h Hearing) defends() bool { return h.IsAgentFresh && !h.IsUndefended && !h.IsProvisional }

// isUnasked reports whether the station says more than it was asked.
func (h Hearing) isUnasked() bool { return h.Statement != StatementAnswer }

// Verdict is what the agent does about another station that says that it has a held address.
type Verdict string

// Verdicts.
const (
	// Ignore the frame.
	Ignore Verdict = "Ignore"
	// Repeat the claim: announce again that this node has the address.
	Repeat Verdict = "Repeat"
	// Defend the address: claim it, once in a while, and report the station.
	Defend Verdict = "Defend"
	// CheckClaim asks the station by itself, at once, whether its kernel has the address, and
	// reports the station if it does not answer.
	CheckClaim Verdict = "CheckClaim"
	// Remember that the station is there, and answers.
	Remember Verdict = "Remember"
	// Suspect asks the station by itself whether its kernel has the address, after a random
	// wait: of two agents that suspect each other one asks first, and the other keeps the
	// address.
	Suspect Verdict = "Suspect"
	// Yield the address to the station.
	Yield Verdict = "Yield"
)

// Rule is one of the listener's rules.
type Rule struct {
	// Name says when the rule applies.
	Name    string
	Applies func(Hearing) bool
	Verdict Verdict
}

// Rules returns the listener's rules. The first one that applies counts; the last one
// always applies.
func Rules() []Rule {
	return []Rule{
		// The manager has named the node: it claims the address of a node that it finds silent, and
		// this node may be the one that is cut off. The highest epoch wins, so also an agent that is
		// fresh yields.
		{
			"node with a higher epoch that was asked by itself answers",
			func(h Hearing) bool { return h.HasHigherEpoch && h.IsAsked && !h.isUnasked() }, Yield,
		},
		// Only an agent announces. A kernel may answer for and use an address that its node has not claimed, as where a
		// service proxy adds the addresses of all Services to an interface.
		{
			"node with a higher epoch announces",
			func(h Hearing) bool { return h.HasHigherEpoch && h.Statement == StatementAnnouncement }, CheckClaim,
		},
		{
			"claim of a node with a higher epoch, or its answer, and the agent does not defend",
			func(h Hearing) bool { return h.HasHigherEpoch && (h.isUnasked() || !h.IsGateway) && !h.defends() }, CheckClaim,
		},
		// A proxy answers for every address. Its claims change the caches of other stations all
		// the same, so an agent that knows better defends the address.
		{"gateway, and the agent does not defend", func(h Hearing) bool { return h.IsGateway && !h.defends() }, Ignore},
		{"answer of a gateway", func(h Hearing) bool { return h.IsGateway && !h.isUnasked() }, Ignore},
		// That node follows the rule for nodes with a higher epoch.
		{"node with a lower epoch", func(h Hearing) bool { return h.HasLowerEpoch }, Repeat},
		// The station's kernel has the address, and this agent is not sure that the node is to
		// have it.
		{"the station that was asked by itself answers, and the agent does not defend",
			func(h Hearing) bool { return h.IsAsked && !h.isUnasked() && !h.defends() }, Yield},
		// The node that was silent has the address in its kernel, and its agent yields when it hears
		// the claim. An agent that announces the address instead knows better.
		{"node goes on from which the address was claimed",
			func(h Hearing) bool {
				return h.IsProvisional && h.IsPreviousHolder && h.Statement != StatementAnnouncement
			}, Repeat},
		// The kernel of a node answers and uses the address while its agent is away. Only an
		// agent announces.
		{"previous holder goes on, whom the agent knows to be away",
			func(h Hearing) bool { return h.IsPreviousHolder && h.defends() }, Repeat},
		{"previous holder goes on, and has all the time since the agent was fresh",
			func(h Hearing) bool {
				return h.IsPreviousHolder && h.HasAnsweredSinceFresh && h.Statement != StatementAnnouncement
			}, Repeat},
		// RFC 5227 section 2.4.
		{"claim, and the agent defends", func(h Hearing) bool { return h.isUnasked() && h.defends() }, Defend},
		// The manager may have told another node to take the address over, while this agent has
		// not heard that it is to withdraw it; or any station claims it.
		{"claim, and the agent does not defend", Hearing.isUnasked, CheckClaim},
		{"answer, and the agent is fresh", func(h Hearing) bool { return h.IsAgentFresh }, Remember},
		{
			"answer of a station that answered while the agent was fresh",
			func(h Hearing) bool { return h.HasAnsweredSinceFresh }, Ignore,
		},
		{"answer", func(Hearing) bool { return true }, Suspect},
	}
}

var rules = Rules()

// Judge decides what to do about another station that says that it has a held address.
func Judge(h Hearing) Verdict {
	for _, rule := range rules {
		if rule.Applies(h) {
			return rule.Verdict
		}
	}
	return Ignore
}
