package routing

import (
	"fmt"
	"slices"
	"strings"
)

// ConcernedService is a Service that has Virtual addresses on a node whose session has gone down.
type ConcernedService struct {
	// Key is namespace/name.
	Key string
	// Down is the session, of several the first.
	Down SessionChange
}

// AddConcerned adds the Services with the given keys, sorted, which a session concerns that has gone
// down. The result is sorted by key.
func AddConcerned(services []ConcernedService, down SessionChange, keys []string) []ConcernedService {
	for _, key := range keys {
		i, isKnown := slices.BinarySearchFunc(services, key, func(s ConcernedService, key string) int {
			return strings.Compare(s.Key, key)
		})
		if !isKnown {
			services = slices.Insert(services, i, ConcernedService{key, down})
		}
	}
	return services
}

// Note is the note of the event at the Service. otherSessions is how many others have gone down at
// the same time, and unnamed at how many further Services there is no event.
func (s *ConcernedService) Note(otherSessions, unnamed int) string {
	note := fmt.Sprintf("The session of node %s with %s is down: %s", s.Down.Node, s.Down.Neighbor, s.Down.Cause)
	if otherSessions > 0 {
		note += fmt.Sprintf("; and %d more sessions are", otherSessions)
	}
	if unnamed > 0 {
		note += fmt.Sprintf(". It concerns %d more Services, at which there is no event", unnamed)
	}
	return note
}
