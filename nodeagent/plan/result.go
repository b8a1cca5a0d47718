package plan

import (
	"fmt"
	"slices"
	"strings"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Reasons of address states.
const (
	ReasonProbing          = "Probing"
	ReasonInterfaceMissing = "InterfaceMissing"
	ReasonInterfaceDown    = "InterfaceDown"
	ReasonNoNodeAddress    = "NoNodeAddress"
	ReasonHandingOver      = "HandingOver"
	ReasonForeignAddress   = "ForeignAddress"
	ReasonInvalid          = purelbv1.ReasonInvalid
	ReasonPreviousHolder   = "PreviousHolder"
	ReasonAnswered         = "Answered"
	ReasonProbeFailed      = "ProbeFailed"
	ReasonYielded          = "Yielded"
	ReasonWaitingForProxy  = "WaitingForProxy"
	ReasonContested        = "Contested"
	ReasonAddFailed        = "AddFailed"
	ReasonRenewFailed      = "RenewFailed"
	ReasonWithdrawFailed   = "WithdrawFailed"
	// ReasonRepeatedlyRemoved marks an announced address that something else on the node
	// removes again and again, so that it is away for a while now and then.
	ReasonRepeatedlyRemoved = "RepeatedlyRemoved"
	// ReasonLost marks an address that was announced under this epoch and is not any more,
	// so that its claim by Takeover does not count a second time.
	ReasonLost = "Lost"
)

// Result is what became of a desired address.
type Result struct {
	State     purelbv1.AddressState
	Epoch     int64
	Interface string
	MAC       string
	Reason    string
	Message   string
}

// AnnouncedResult is the Result of an address that is in place.
func AnnouncedResult(d *Desired) Result {
	return Result{State: purelbv1.StateAnnounced, Epoch: d.Epoch, Interface: d.Interface}
}

// StillAnnouncedResult is the Result of an address that is in place although an operation on
// it failed.
func StillAnnouncedResult(d *Desired, reason string, err error) Result {
	r := AnnouncedResult(d)
	r.Reason, r.Message = reason, err.Error()
	return r
}

// FailedResult is the Result of an address that could not be added, removed or probed for.
func FailedResult(d *Desired, reason string, err error) Result {
	return Result{State: purelbv1.StateFailed, Epoch: d.Epoch, Reason: reason, Message: err.Error()}
}

// WaitingForProxyResult is the Result of an address whose traffic stays on the node, and
// which the node's service proxy does not serve yet.
func WaitingForProxyResult(d *Desired) Result {
	return Result{
		State: purelbv1.StatePending, Epoch: d.Epoch, Reason: ReasonWaitingForProxy,
		Message: fmt.Sprintf(
			"the node's service proxy does not say at port %d that it has an endpoint on this node", d.HealthPort,
		),
	}
}

// InterfaceMissingResult is the Result of an address whose interface does not exist.
func InterfaceMissingResult(d *Desired) Result {
	return Result{
		State: purelbv1.StatePending, Epoch: d.Epoch, Reason: ReasonInterfaceMissing,
		Message: fmt.Sprintf("there is no interface %s", d.Interface),
	}
}

// probingResult is the Result of an address while the link is asked for it.
func probingResult(d *Desired) Result {
	return Result{
		State: purelbv1.StatePending, Epoch: d.Epoch, Reason: ReasonProbing,
		Message: "asking the link whether another station has the address",
	}
}

// answeredResult is the Result of an address for which a station answers: its previous
// holder, whose kernel serves on although its agent is away, or a stranger.
func answeredResult(d *Desired, mac string) Result {
	if d.isPreviousHolder(mac) {
		return Result{
			State: purelbv1.StateWaiting, Epoch: d.Epoch, MAC: mac, Reason: ReasonPreviousHolder,
			Message: fmt.Sprintf("its previous holder, %s, still answers for the address; waiting until it stops", mac),
		}
	}
	return Result{
		State: purelbv1.StateConflict, Epoch: d.Epoch, MAC: mac, Reason: ReasonAnswered,
		Message: fmt.Sprintf(
			"%s on %s answers for the address: take it off that station, or out of the pool; waiting until it stops",
			mac, d.Interface,
		),
	}
}

func (d *Desired) isPreviousHolder(mac string) bool {
	return slices.ContainsFunc(d.PreviousMACs, func(m string) bool { return strings.EqualFold(m, mac) })
}
