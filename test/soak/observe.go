package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/soak/check"
	"github.com/purelb/purelb-operator/test/soak/model"
)

const (
	// askInterval is the time between two questions for each Local address.
	askInterval = 100 * time.Millisecond
	// lookInterval is the time between two looks at kernels and processes.
	lookInterval = time.Second
	// deafTime is how long after an agent was seen not to run it may still not act: the
	// kubelet has to start it, and it has to list what it is to do.
	deafTime = 15 * time.Second
)

// weather returns what disturbs the cluster at a time. The caller holds the mutex.
func (s *soak) weather(now time.Time) check.Weather {
	w := check.Weather{Watched: s.watched}
	for _, f := range s.faults {
		if !f.ended.IsZero() && now.Sub(f.ended) > aftermath {
			continue
		}
		switch f.kind {
		case model.CutLink, model.UnplugPort, model.CutAPI, model.PowerOff:
			w.Cut = append(w.Cut, f.node)
		case model.StopAPI, model.FreezeManager, model.KillManager:
			w.NoDecisions = true
		}
	}
	for node, seen := range s.deaf {
		if now.Sub(seen) < deafTime {
			w.Deaf = append(w.Deaf, node)
		}
	}
	for _, n := range model.Nodes {
		if !s.refusing[n] {
			w.Able = append(w.Able, n)
		}
	}
	for _, l := range s.late {
		w.Late = max(w.Late, l.by)
	}
	slices.Sort(w.Cut)
	slices.Sort(w.Deaf)
	return w
}

// isCalm says whether nothing is wrong, so that no program has a cause to log an error. On a
// machine that is too busy, requests to the API server end by their timeouts.
func (s *soak) isCalm(now time.Time) bool {
	return !s.calmSince.IsZero() && now.Sub(s.calmSince) > lookInterval && s.weather(now).Late < tooLate
}

// lateness is by how much a clock was late.
type lateness struct {
	at time.Time
	by time.Duration
}

const (
	// clockInterval is how often the clock strikes that shows how busy the machine is.
	clockInterval = 20 * time.Millisecond
	// tooLate is how late the clock is where requests fail because the machine is busy.
	tooLate = 100 * time.Millisecond
	// lateTime is for how long being late counts.
	lateTime = 10 * time.Second
	// clockLate is the key of soak.largest of how late the clock was.
	clockLate = "clock late, ms"
)

// watchClock notes how late the machine lets a process run that sleeps and does nothing else.
func (s *soak) watchClock(ctx context.Context) error {
	measure.WatchClock(ctx, clockInterval, func(now time.Time, by time.Duration) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.late = slices.DeleteFunc(s.late, func(l lateness) bool { return now.Sub(l.at) > lateTime })
		if by > clockInterval {
			s.late = append(s.late, lateness{now, by})
			s.largest[clockLate] = max(s.largest[clockLate], float64(by.Milliseconds()))
		}
	})
	return nil
}

func (s *soak) askIPv4(ctx context.Context) error {
	return s.ask(ctx, netip.MustParseAddr("10.77.0.0"))
}
func (s *soak) askIPv6(ctx context.Context) error {
	return s.ask(ctx, netip.MustParseAddr("fd00:77::"))
}

// question is a round of questions: when each address was asked for, and who answered.
type question struct {
	asked   map[netip.Addr]time.Time
	answers map[netip.Addr][]string
}

type answer struct {
	address netip.Addr
	mac     string
	at      time.Time
}

// ask asks for all Local addresses of a family, round by round. An answer belongs to the
// last question for its address before the kernel got the answer, so a round is judged when
// the next one has been over for a while.
func (s *soak) ask(ctx context.Context, family netip.Addr) error {
	asker, err := lab.OpenAsker(lab.Client, family)
	if err != nil {
		return err
	}
	answers := make(chan answer, 10_000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if a, mac, at, ok := asker.Answer(); ok {
				select {
				case answers <- answer{a, mac, at}:
				default: // nobody judges: the machine is busy
				}
			}
		}
	}()
	defer func() { <-ended; _ = asker.Close() }()
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	var before, last *question
	for ctx.Err() == nil {
		now := &question{asked: map[netip.Addr]time.Time{}, answers: map[netip.Addr][]string{}}
		for _, a := range s.localAddresses(family) {
			now.asked[a] = time.Now()
			if err := asker.Ask(a); err != nil {
				return err
			}
		}
		s.sort(answers, before, last, now)
		s.judge(before, last)
		before, last = last, now
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// sort adds the answers that have come to the rounds that they belong to.
func (s *soak) sort(answers <-chan answer, rounds ...*question) {
	for {
		select {
		case a := <-answers:
			for _, q := range slices.Backward(rounds) {
				if q == nil {
					continue
				}
				if asked, ok := q.asked[a.address]; ok && !a.at.Before(asked) {
					if !slices.Contains(q.answers[a.address], a.mac) {
						q.answers[a.address] = append(q.answers[a.address], a.mac)
					}
					break
				}
			}
		default:
			return
		}
	}
}

// judge judges a round, which lasted until the next. If the machine was too busy to ask in
// time, the round counts for no longer than it was to last.
func (s *soak) judge(q, next *question) {
	if q == nil || next == nil {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for a, asked := range q.asked {
		if _, again := next.asked[a]; !again {
			s.watch.Forget(a)
			continue
		}
		s.watch.Answered(asked, a, q.answers[a], min(next.asked[a].Sub(asked), askInterval), s.weather(asked))
	}
}

// localAddresses returns the addresses of Services that are on the nodes' link.
func (s *soak) localAddresses(family netip.Addr) []netip.Addr {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var all []netip.Addr
	for text := range s.local {
		if a := netip.MustParseAddr(text); a.Is4() == family.Is4() {
			all = append(all, a)
		}
	}
	return all
}

// held returns the addresses that a node's kernel has, without its own.
func (s *soak) held(ctx context.Context, node string) ([]netip.Prefix, error) {
	places, err := s.places(ctx, node)
	var all []netip.Prefix
	for _, p := range places {
		all = append(all, p.Prefix)
	}
	return all, err
}

// places returns the addresses that a node's kernel has on interfaces of PureLB, without its
// own, and where.
func (s *soak) places(ctx context.Context, node string) ([]check.Held, error) {
	addresses, err := s.lab.Addresses(ctx, node)
	if err != nil {
		return nil, err
	}
	own := map[netip.Prefix]bool{}
	for _, n := range s.lab.Nodes() {
		if n.Name == node {
			own[n.IPv4], own[n.IPv6] = true, true
		}
	}
	var all []check.Held
	for _, a := range addresses {
		if (a.Link == "eth0" || a.Link == "kube-lb0") && !own[a.Prefix] && !a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, check.Held{Link: a.Link, Prefix: a.Prefix})
		}
	}
	return all, nil
}

// watchKernels looks whether nodes have the Virtual addresses that they are to have.
func (s *soak) watchKernels(ctx context.Context) error {
	for ctx.Err() == nil {
		for _, node := range model.Nodes {
			held, err := s.held(ctx, node)
			if err != nil {
				return err
			}
			now := time.Now()
			s.mutex.Lock()
			weather := s.weather(now)
			for text, nodes := range s.virtual {
				a := netip.MustParseAddr(text)
				has := slices.ContainsFunc(held, func(p netip.Prefix) bool { return p.Addr() == a })
				s.watch.Holds(now, node, a, has || !slices.Contains(nodes, node), lookInterval, weather)
			}
			s.mutex.Unlock()
		}
		_ = sleep(ctx, lookInterval)
	}
	return nil
}

// watchAgents looks which agents run.
func (s *soak) watchAgents(ctx context.Context) error {
	for ctx.Err() == nil {
		acting, err := findAgents()
		if err != nil {
			return err
		}
		s.mutex.Lock()
		for _, node := range model.Nodes {
			if !acting[node] {
				s.deaf[node] = time.Now()
				s.watched = s.watched && slices.Contains(s.weather(time.Now()).Cut, node)
			}
		}
		s.mutex.Unlock()
		_ = sleep(ctx, lookInterval/2)
	}
	return nil
}

// findAgents returns the nodes whose agents run and are not stopped.
func findAgents() (map[string]bool, error) {
	programs, err := findPrograms()
	acting := map[string]bool{}
	for _, p := range programs {
		if p.role == "agent" && !p.stopped {
			acting[p.node] = true
		}
	}
	return acting, err
}

// program is a process of PureLB.
type program struct {
	pid        int
	role       string // manager or agent
	node, name string // of an agent, and the pod of a manager
	stopped    bool
}

// findPrograms finds the processes of PureLB.
func findPrograms() ([]program, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []program
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(text, []byte("/purelb\x00")) {
			continue
		}
		args := strings.Split(string(text), "\x00")
		folder := filepath.Dir(path)
		stat, err := os.ReadFile(filepath.Join(folder, "stat"))
		if err != nil {
			continue // it has ended
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		p := program{
			role: args[1], stopped: strings.HasPrefix(state, "T") || strings.HasPrefix(state, "Z"),
			pid: atoi(filepath.Base(folder)),
		}
		for _, arg := range args {
			if value, ok := strings.CutPrefix(arg, "--node-name="); ok {
				p.node = value
			}
			if value, ok := strings.CutPrefix(arg, "--pod-name="); ok {
				p.name = value
			}
		}
		found = append(found, p)
	}
	return found, nil
}

func atoi(text string) int {
	n := 0
	for _, c := range text {
		n = n*10 + int(c-'0')
	}
	return n
}

// watchServices follows the addresses of Services.
func (s *soak) watchServices(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(s.clientset, 0, informers.WithNamespace(soakNamespace))
	informer := factory.Core().V1().Services().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.seeService(obj.(*corev1.Service)) },
		UpdateFunc: func(_, obj any) { s.seeService(obj.(*corev1.Service)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if svc, ok := obj.(*corev1.Service); ok {
				s.mutex.Lock()
				defer s.mutex.Unlock()
				delete(s.owned, svc.Name)
				s.countLocal()
			}
		},
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func (s *soak) seeService(svc *corev1.Service) {
	var addresses []netip.Addr
	var texts []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			addresses, texts = append(addresses, a), append(texts, in.IP)
		}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if uid := string(svc.UID); s.uids[svc.Name] != uid {
		s.watch.Removed(svc.Name) // a Service that is created again is another one
		s.uids[svc.Name] = uid
	}
	s.watch.Ingress(time.Now(), svc.Name, addresses)
	s.owned[svc.Name] = texts
	s.countLocal()
}

// countLocal notes the addresses that are on the nodes' link. The caller holds the mutex.
func (s *soak) countLocal() {
	s.local = map[string][]string{}
	for name, texts := range s.owned {
		for _, text := range texts {
			if strings.HasPrefix(text, "10.77.0.") || strings.HasPrefix(text, "fd00:77::") {
				s.local[text] = append(s.local[text], name)
			}
		}
	}
}

// followLogs follows the logs of all containers of PureLB, keeps a copy, and judges each
// line. It has the files open, so it reads the end of a log after its pod is gone, too.
func (s *soak) followLogs(ctx context.Context) error {
	type follower struct {
		source string
		file   *os.File
		reader *bufio.Reader
		rest   string
		copy   *os.File
	}
	open := map[string]*follower{}
	defer func() {
		for _, f := range open {
			_ = errors.Join(f.file.Close(), f.copy.Close())
		}
	}()
	for ctx.Err() == nil {
		for _, node := range model.Nodes {
			paths, err := filepath.Glob(filepath.Join(s.logFolder(node), systemNamespace+"_*", "*", "*.log"))
			if err != nil {
				return err
			}
			for _, path := range paths {
				if open[path] != nil {
					continue
				}
				file, err := os.Open(path)
				if err != nil {
					continue // it is gone
				}
				folder := filepath.Base(filepath.Dir(filepath.Dir(path)))
				program := filepath.Base(filepath.Dir(path))
				source := program + "/" + node + "/" + strings.Split(folder, "_")[1] + "-" + filepath.Base(path)
				copied, err := os.Create(filepath.Join(s.out, "logs", strings.ReplaceAll(source, "/", "_")))
				if err != nil {
					return err
				}
				open[path] = &follower{source: source, file: file, reader: bufio.NewReader(file), copy: copied}
			}
		}
		for _, f := range open {
			for {
				part, err := f.reader.ReadString('\n')
				f.rest += part
				if err != nil {
					if err != io.EOF {
						return err
					}
					break
				}
				line := strings.TrimSuffix(f.rest, "\n")
				f.rest = ""
				_, _ = f.copy.WriteString(line + "\n")
				s.mutex.Lock()
				s.logs.Line(time.Now(), f.source, line, s.isCalm(time.Now()))
				s.mutex.Unlock()
			}
		}
		_ = sleep(ctx, lookInterval/2)
	}
	return nil
}
