package gobgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// logHandler takes the log of the library. It passes on warnings and errors, as what is shown
// with --log-level=debug only, and notes why the library cannot connect, and that a hold time is over.
type logHandler struct {
	server *Server
	// key is the neighbour that the logger is about, if it is about one.
	key string
}

// Enabled takes everything: why a connection fails is said at the lowest level.
func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }

// WithGroup returns the handler: the library uses no groups.
func (h *logHandler) WithGroup(string) slog.Handler { return h }

// WithAttrs notes the neighbour that a logger is about.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	for _, a := range attrs {
		if a.Key == "Key" {
			next.key = a.Value.String()
		}
	}
	return &next
}

// maxLogged is how many bytes of a value of the library's log are passed on.
const maxLogged = 512

// Handle takes one record.
func (h *logHandler) Handle(_ context.Context, record slog.Record) error {
	key := h.key
	values := map[string]string{}
	var shown []any
	record.Attrs(func(a slog.Attr) bool {
		values[a.Key] = a.Value.String()
		if a.Key == "Key" {
			key = a.Value.String()
		} else if record.Level >= slog.LevelWarn {
			shown = append(shown, a.Key, textlimit.Shorten(a.Value.String(), maxLogged)) // neighbours have written some of it
		}
		return true
	})
	if addr, err := netip.ParseAddr(key); err == nil {
		if record.Message == "hold timer expired" {
			h.server.noteSilence(addr)
		}
		if why := explainRecord(record.Message, values); why != "" {
			h.server.noteConnectError(addr, why)
		}
	}
	if record.Level >= slog.LevelWarn {
		h.server.log.V(1).Info("GoBGP: "+record.Message, append(shown, "neighbour", key)...)
	}
	return nil
}

// explainRecord says in words why a session could not be opened, if the record is about that.
func explainRecord(message string, values map[string]string) string {
	switch message {
	case "failed to connect":
		return explainConnect(values["Error"])
	case "outgoing connection IO error", "outgoing connection closing due to hold timer expired in OPEN SENT state":
		return "the neighbour accepts connections and closes them again: it does not know this node as a neighbour, or its " +
			"session with this address is not over yet"
	case "sent notification":
		switch values["Code"] + "/" + values["Subcode"] {
		case "2/2": // RFC 4271 section 6.2
			return "the neighbour is in another autonomous system than peerASN says: correct peerASN, or the neighbour"
		case "2/3":
			return "the neighbour has the same BGP identifier as the node"
		case "5/1": // the answer to something else than OPEN (RFC 6608)
			return errorOfRefusal
		}
	}
	return ""
}

// errorOfRefusal is the error of a neighbour that answers OPEN with a NOTIFICATION. The library does
// not say which.
const errorOfRefusal = "the neighbour refuses the session: it expects the node in another autonomous system (compare " +
	"myASN with the router), or does not allow it"

// errorOfNoSource is the error of a neighbour to which the node would connect from an address that it does not have.
const errorOfNoSource = "the node does not have the source address"

// explainConnect says in words why a connection could not be opened.
func explainConnect(failure string) string {
	switch {
	case strings.Contains(failure, "connection refused"):
		return "the neighbour refuses connections: BGP does not run there, or does not know this node"
	case strings.Contains(failure, "i/o timeout"), strings.Contains(failure, "connection timed out"):
		return "the neighbour does not answer: it is down, a firewall drops the packets, or its password differs"
	case strings.Contains(failure, "no route to host"):
		return "the neighbour does not answer on the link (no route to host)"
	case strings.Contains(failure, "network is unreachable"):
		return "the node has no route to the neighbour"
	case strings.Contains(failure, "cannot assign requested address"):
		return errorOfNoSource
	case strings.Contains(failure, "connection reset"):
		return "the neighbour resets the connection: it does not know this node, or another session with this address exists"
	}
	return "cannot connect: " + failure
}
