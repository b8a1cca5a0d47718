package twin

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Recorder makes the record of a scenario of what it is told that happens. It puts into one form what differs between
// clusters, or from run to run, without a difference in what the product does:
//
//   - Names. Nodes are letters in the order in which the record names them, and addresses are called by the Service
//     that had them first, and their family: which node is elected depends on the address.
//   - Streams. Each address has a stream of entries in Announcements and one of claims that a client hears. Each
//     Service has streams of events: one of its allocation, one of the moves of each address, and one of what each
//     node says of each address. What one of them has is in the order in which it happened. Between two streams there
//     is no order: controllers, nodes and the link work side by side.
//   - Virtual addresses have no stream: nodes add them side by side.
//   - The manager writes Announcements side by side, so an address that leaves those of two nodes is for one of them
//     for a moment, and which one is chance: the record has the end alone.
//   - Events count once in a scenario for each Service, Announcement, type, reason and action, as Kubernetes writes
//     those that are repeated as a number, which it brings up to date minutes later.
//   - Claims count when another node claims the address than the one before, as agents repeat them.
//   - Conditions count at rest. In between a controller may see two changes as one.
type Recorder struct {
	mu sync.Mutex
	// namespace is that of the scenario's Services, which the record does not name.
	namespace string
	// canonical are names that the record has instead of those of the cluster.
	canonical map[string]string
	// letters are those of nodes.
	letters map[string]string
	nodes   []string

	services      map[string]*corev1.Service
	announcements map[string]*v1.Announcement
	leases        map[string]*coordinationv1.Lease
	// addresses are those that Services of the scenario have had, with their names.
	addresses map[netip.Addr]string
	types     map[netip.Addr]v1.AnnounceType

	title   string
	entries map[netip.Addr]*stream
	claims  map[netip.Addr]*stream
	events  []Event
	seen    map[Event]bool
}

// stream has what is new in a step, what was last, and what was before that.
type stream struct {
	items            []string
	last, beforeLast string
}

// add adds what differs from the last.
func (s *stream) add(item string) {
	if item != s.last {
		s.items, s.last, s.beforeLast = append(s.items, item), item, s.last
	}
}

// addNodes adds the nodes whose Announcements have an address.
func (s *stream) addNodes(nodes []string) {
	slices.Sort(nodes)
	isLastOfTwo := len(nodes) == 0 && !strings.Contains(s.last, nodeSeparator) &&
		strings.Contains(s.beforeLast, nodeSeparator)
	if isLastOfTwo && len(s.items) > 0 {
		s.items = s.items[:len(s.items)-1]
	}
	s.add(strings.Join(nodes, nodeSeparator))
}

// nodeSeparator is between the nodes of an item.
const nodeSeparator = "\n"

// Event is an event about a Service.
type Event struct {
	// Service and Related are the names of the Service and of the Announcement that it is about, if it is about one.
	Service, Related           string
	Type, Reason, Action, Note string
	At                         time.Time
}

// NewRecorder returns a Recorder of a cluster with nodes, in which the scenario's Services are in a namespace.
// canonical are the names that the record has instead of names of the cluster, such as those of ServiceGroups.
func NewRecorder(nodes []string, namespace string, canonical map[string]string) *Recorder {
	return &Recorder{
		namespace: namespace, canonical: canonical, letters: map[string]string{}, nodes: nodes,
		services:      map[string]*corev1.Service{},
		announcements: map[string]*v1.Announcement{}, leases: map[string]*coordinationv1.Lease{},
		addresses: map[netip.Addr]string{}, types: map[netip.Addr]v1.AnnounceType{},
		entries: map[netip.Addr]*stream{}, claims: map[netip.Addr]*stream{}, seen: map[Event]bool{},
	}
}

// SawService notes a Service of the scenario as it is now.
func (r *Recorder) SawService(svc *corev1.Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[svc.Name] = svc
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		addr, err := netip.ParseAddr(ingress.IP)
		if err != nil || r.addresses[addr] != "" {
			continue
		}
		base := svc.Name + " " + string(corev1.IPv4Protocol)
		if addr.Is6() {
			base = svc.Name + " " + string(corev1.IPv6Protocol)
		}
		name := base
		for n := 2; slices.Contains(slices.Collect(maps.Values(r.addresses)), name); n++ {
			name = fmt.Sprint(base, " ", n)
		}
		r.addresses[addr] = name
	}
}

// SawServiceDeleted notes that there is no Service of a name any more.
func (r *Recorder) SawServiceDeleted(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, name)
}

// SawAnnouncements notes all Announcements as they are now.
func (r *Recorder) SawAnnouncements(all []v1.Announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.announcements)
	for i := range all {
		r.announcements[all[i].Name] = &all[i]
	}
	r.noteEntries()
}

// SawAnnouncement notes an Announcement as it is now.
func (r *Recorder) SawAnnouncement(a *v1.Announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.announcements[a.Name] = a
	r.noteEntries()
}

// SawAnnouncementDeleted notes that there is no Announcement of a name any more.
func (r *Recorder) SawAnnouncementDeleted(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.announcements, name)
	r.noteEntries()
}

// SawLease notes the Lease of an agent as it is now.
func (r *Recorder) SawLease(l *coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases[strings.TrimPrefix(l.Name, v1.LeasePrefix)] = l
}

// SawEvent notes an event.
func (r *Recorder) SawEvent(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := e
	key.Note, key.At = "", time.Time{}
	if !r.seen[key] {
		r.seen[key] = true
		r.events = append(r.events, e)
	}
}

// SawClaim notes that a node has told all stations on the link that it has an address.
func (r *Recorder) SawClaim(addr netip.Addr, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims[addr] == nil {
		r.claims[addr] = &stream{}
	}
	r.claims[addr].add(node)
}

// noteEntries notes which nodes are to announce which Local address, if that has changed.
func (r *Recorder) noteEntries() {
	now := map[netip.Addr][]string{}
	for _, a := range r.announcements {
		for i := range a.Spec.Addresses {
			e := &a.Spec.Addresses[i]
			addr, err := netip.ParseAddr(e.Address)
			if err != nil {
				continue
			}
			if r.types[addr] = e.Type; e.Type != v1.AnnounceLocal {
				continue
			}
			text := a.Spec.NodeName
			if e.HandingOver {
				text += " hands over"
			}
			now[addr] = append(now[addr], text)
			if r.entries[addr] == nil {
				r.entries[addr] = &stream{}
			}
		}
	}
	for addr, s := range r.entries {
		s.addNodes(now[addr])
	}
}

// namesOf returns the names of nodes with letters.
func (r *Recorder) namesOf(letters []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, letter := range letters {
		at := slices.IndexFunc(r.nodes, func(n string) bool { return r.letters[n] == letter })
		if at < 0 {
			at = slices.IndexFunc(r.nodes, func(n string) bool { return r.letters[n] == "" })
			r.letters[r.nodes[at]] = letter
		}
		names = append(names, r.nodes[at])
	}
	return names
}

// beginStep begins the section of a step.
func (r *Recorder) beginStep(title string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.title = title
}

// where says which nodes have an address, and which answer for it.
type where struct{ kernels, answers []string }

// look finds where the addresses of the scenario are. Meanwhile more may happen.
func (r *Recorder) look(c Cluster) (map[netip.Addr]where, error) {
	r.mu.Lock()
	addrs, types := slices.SortedFunc(maps.Keys(r.addresses), netip.Addr.Compare), maps.Clone(r.types)
	r.mu.Unlock()
	found := map[netip.Addr]where{}
	for _, addr := range addrs {
		var at where
		var err error
		if at.kernels, err = c.Kernels(addr); err != nil {
			return nil, err
		}
		if types[addr] == v1.AnnounceLocal {
			if at.answers, err = c.Answers(addr); err != nil {
				return nil, err
			}
		}
		found[addr] = at
	}
	return found, nil
}

// section returns that of the present step, as far as it has gone, and whether it is the wanted one. If it is, or if
// isLast, the step is over: what happens from then on belongs to the next one.
func (r *Recorder) section(c Cluster, wanted string, isLast bool) (text string, isWanted bool, err error) {
	found, err := r.look(c)
	if err != nil {
		return "", false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := printer{Recorder: r, letters: maps.Clone(r.letters)}
	p.line("%s", titlePrefix+r.title)
	p.writeStreams()
	p.writeState(found)
	text = p.text.String()
	if isWanted = text == wanted; isWanted || isLast {
		p.endStep()
	}
	return text, isWanted, nil
}

// printer writes a section. Nodes that the record has not named yet have their letters from then on.
type printer struct {
	*Recorder
	letters map[string]string
	text    strings.Builder
}

// endStep keeps the letters, and forgets what has been written.
func (p *printer) endStep() {
	p.Recorder.letters, p.events = p.letters, nil
	for _, streams := range []map[netip.Addr]*stream{p.entries, p.claims} {
		for _, s := range streams {
			s.items = nil
		}
	}
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// letterOf returns the letter of a node.
func (p *printer) letterOf(node string) string {
	if p.letters[node] == "" {
		letter := 'A'
		for slices.Contains(slices.Collect(maps.Values(p.letters)), string(letter)) {
			letter++
		}
		p.letters[node] = string(letter)
	}
	return p.letters[node]
}

// lettersOf returns the letters of nodes, or "nobody".
func (p *printer) lettersOf(nodes []string) string {
	var letters []string
	for _, n := range slices.Sorted(slices.Values(nodes)) {
		letters = append(letters, p.letterOf(n))
	}
	slices.Sort(letters)
	return cmp.Or(strings.Join(letters, " "), "nobody")
}

// silence is for how long a node had not answered when another one claimed its addresses.
var silence = regexp.MustCompile(`had not answered for [0-9.]+m?s`)

// named returns a text with names of the record instead of those of the cluster.
func (p *printer) named(text string) string {
	text = silence.ReplaceAllString(strings.ReplaceAll(text, p.namespace+"/", ""), "had not answered for a while")
	isDone := map[string]bool{}
	for _, f := range strings.FieldsFunc(text, isBetweenNames) {
		addr, err := netip.ParseAddr(f)
		if err != nil {
			f = strings.TrimSuffix(f, ":")
		}
		if isDone[f] {
			continue
		}
		isDone[f] = true
		name := cmp.Or(p.canonical[f], p.addresses[addr])
		if name == "" && slices.Contains(p.nodes, f) {
			name = p.letterOf(f)
		}
		if name != "" {
			text = replaceWord(text, f, name)
		}
	}
	return text
}

// isBetweenNames reports whether a letter of a text is in no name and in no address.
func isBetweenNames(c rune) bool { return strings.ContainsRune(" ,;()\n", c) }

// replaceWord replaces a word of a text wherever it stands alone, or with a colon after it.
func replaceWord(text, word, by string) string {
	var out strings.Builder
	for {
		at := strings.Index(text, word)
		if at < 0 {
			return out.String() + text
		}
		end := at + len(word)
		isAlone := (at == 0 || isBetweenNames(rune(text[at-1]))) &&
			(end == len(text) || isBetweenNames(rune(text[end])) || text[end] == ':')
		out.WriteString(text[:at])
		if isAlone {
			out.WriteString(by)
		} else {
			out.WriteString(word)
		}
		text = text[end:]
	}
}

// addressesInOrder returns the addresses of the scenario, by their names.
func (p *printer) addressesInOrder() []netip.Addr {
	return slices.SortedFunc(maps.Keys(p.addresses), func(a, b netip.Addr) int {
		return cmp.Compare(p.addresses[a], p.addresses[b])
	})
}

func (p *printer) writeStreams() {
	for _, addr := range p.addressesInOrder() {
		if s := p.entries[addr]; s != nil {
			for _, item := range s.items {
				entries := strings.Split(p.named(item), nodeSeparator)
				slices.Sort(entries)
				p.line("%s is for %s", p.addresses[addr], cmp.Or(strings.Join(entries, " and "), "nobody"))
			}
		}
	}
	for _, addr := range p.addressesInOrder() {
		if s := p.claims[addr]; s != nil {
			for _, node := range s.items {
				p.line("%s is claimed by %s", p.addresses[addr], p.letterOf(node))
			}
		}
	}
	p.writeEvents()
}

// writeEvents writes the streams of events: of each Service that of its allocation, those of moves, and the others.
func (p *printer) writeEvents() {
	events := slices.Clone(p.events)
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	type eventStream struct {
		service, text string
		rank          int
	}
	streams := map[Event]*eventStream{}
	for _, e := range events {
		rank, key := eventStreamOf(e)
		if streams[key] == nil {
			streams[key] = &eventStream{service: e.Service, rank: rank}
		}
		streams[key].text += fmt.Sprintf("%s: %s %s: %s\n", e.Service, e.Type, e.Reason, p.named(e.Note))
	}
	for _, s := range slices.SortedFunc(maps.Values(streams), func(a, b *eventStream) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.rank, b.rank), cmp.Compare(a.text, b.text))
	}) {
		p.text.WriteString(s.text)
	}
}

// eventStreamOf returns what an event has in common with the others of its stream, and where the stream stands.
func eventStreamOf(e Event) (rank int, key Event) {
	verb, _, _ := strings.Cut(e.Action, " ")
	switch verb {
	case "Place":
		return 1, Event{Service: e.Service, Action: e.Action}
	case "Announce", "Claim", "Advertise", "Ask":
		return 2, Event{Service: e.Service, Related: e.Related, Action: e.Action}
	}
	return 0, Event{Service: e.Service}
}

// countFollowers returns how many nodes are to claim an address when its holder dies, and watch it. Those that know of
// no witness count: the lab has a gateway, and the simulation has none.
func (p *printer) countFollowers(addr netip.Addr) int {
	count := 0
	for _, a := range p.announcements {
		if a.Spec.Standby == nil || !slices.ContainsFunc(
			a.Spec.Standby.Addresses, func(e v1.StandbyAddress) bool { return e.Address == addr.String() },
		) {
			continue
		}
		ready := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionReady)
		if ready != nil && ready.ObservedGeneration == a.Generation &&
			(ready.Status == metav1.ConditionTrue || ready.Reason == v1.ReasonNoWitness) {
			count++
		}
	}
	return count
}

// writeState writes how all is at rest, with where the addresses were found.
func (p *printer) writeState(found map[netip.Addr]where) {
	for _, addr := range p.addressesInOrder() {
		text := "in the kernels of " + p.lettersOf(found[addr].kernels)
		if p.types[addr] == v1.AnnounceLocal {
			text += ", answered for by " + p.lettersOf(found[addr].answers)
		}
		if followers := p.countFollowers(addr); followers > 0 {
			text += fmt.Sprintf(", followed by %d", followers)
		}
		p.line("at rest: %s is %s", p.addresses[addr], text)
	}
	for _, name := range slices.Sorted(maps.Keys(p.services)) {
		svc := p.services[name]
		var words []string
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			words = append(words, p.named(ingress.IP))
		}
		for _, condition := range svc.Status.Conditions {
			kind, isOurs := strings.CutPrefix(condition.Type, v1.GroupVersion.Group+"/")
			if isOurs {
				words = append(words, fmt.Sprintf("%s=%s %s", kind, condition.Status, condition.Reason))
			}
		}
		slices.Sort(words)
		p.line("at rest: Service %s has %s", name, cmp.Or(strings.Join(words, ", "), "nothing"))
	}
	var late []string
	for node, l := range p.leases {
		if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil || time.Since(l.Spec.RenewTime.Time) >
			time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second {
			late = append(late, node)
		}
	}
	if len(late) == len(p.nodes) {
		p.line("at rest: no agent renews its Lease")
	} else if len(late) > 0 {
		p.line("at rest: no Lease is renewed by %s", p.lettersOf(late))
	}
}
