package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

var _ = Describe("A successor that does not know what became of an address", func() {
	// disarmedWithin is how long a successor that is cut off the API server takes to find that the
	// holder has an address no more: it asks every 10 s, and then twice more.
	const disarmedWithin = 20 * time.Second
	// tryZombie makes an experiment about a Service of its own in each trial. The leading manager
	// runs on the holder, so that it works while others are cut off.
	tryZombie := func(ctx SpecContext, name string, tryOnce func(*space, string, *watchedService)) {
		GinkgoHelper()
		s := newSpace(ctx)
		group := s.localGroup(ctx)
		runTrials(ctx, name, nil, func(t *oneTrial) {
			forgetTrials(ctx)
			m := &watchedService{ctx: ctx, trial: t, host: lab.Client, holder: leaderNode(ctx)}
			m.svc = s.createService(ctx, fmt.Sprintf("gone-%d", t.Seed), group)
			m.addrs = waitForAddresses(ctx, m.svc, 2)
			waitForRest(ctx, m.svc)
			gatherAddresses(ctx, m.holder, areAnnouncedBy(ctx, m.holder, m.addrs))
			m.successors = waitUntilFollowed(ctx, m.holder, m.addrs)
			m.pause(1500 * time.Millisecond)
			tryOnce(s, group, m)
			Eventually(func() error { return s.deleteServices(ctx) }).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
		})
	}
	specifyWatched("does not claim one that was deleted meanwhile", func(ctx SpecContext) {
		const name = "address deleted, successors cut off the API server, then holder dead"
		tryZombie(ctx, name, func(s *space, _ string, m *watchedService) {
			others := m.others(m.holder)
			healAPI := m.cutAPI(others...)
			s.kubectl(ctx, "delete", "service", m.svc.Name)
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
			m.pause(disarmedWithin)
			m.watchKernels()
			m.kill(noCarrier, m.holder)
			m.pause(5 * time.Second)
			healAPI()
			m.pause(5 * time.Second)
			m.expectNoClaims(nodeNames()...)
			m.revive(noCarrier, m.holder)
		})
	})

	specifyWatched("does not claim one whose Service was made anew elsewhere", func(ctx SpecContext) {
		const name = "Service made anew elsewhere, successor cut off the API server, then holder dead"
		tryZombie(ctx, name, func(s *space, group string, m *watchedService) {
			cut := m.anySuccessor()
			healAPI := m.cutAPI(cut)
			s.kubectl(ctx, "delete", "service", m.svc.Name)
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
			DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, m.holder) }, NodeTimeout(waitLimit))
			setExcluded(ctx, true, m.holder)
			anew := s.createService(ctx, m.svc.Name+"-anew", group, askFor(m.addrs))
			waitForAddresses(ctx, anew, 2)
			elsewhere := m.waitUntilAnnouncedBy(m.others(m.holder, cut)...)
			m.watchKernels()
			m.startMeters()
			m.kill(noCarrier, m.holder)
			m.pause(5 * time.Second)
			for _, f := range m.stopMeters("") {
				Expect(f.Changes).To(BeZero(), "changes of MAC")
				Expect(f.Duplicate).To(BeZero(), "two nodes answer")
			}
			m.revive(noCarrier, m.holder)
			healAPI()
			m.pause(5 * time.Second)
			m.expectNoClaims(m.holder, cut)
			setExcluded(ctx, false, m.holder)
			m.expectKept(elsewhere)
		})
	})
})

var _ = Describe("Many addresses of a watched holder", func() {
	specifyWatched("are all claimed, by all successors, when it dies", func(ctx SpecContext) {
		const (
			many          = 100
			longestFigure = "longest ND silence, ms"
			usualFigure   = "median ND silence, ms"
		)
		s := newSpace(ctx)
		group := s.createLocalGroup(ctx, "many", v1.PoolSet{
			V6Pools: []v1.AddressPool{{Subnet: "fd00:77::/64", Pool: s.manyV6().String()}},
		})
		var services []*corev1.Service
		var addrs []netip.Addr
		for i := range many {
			services = append(services, s.createService(ctx, fmt.Sprintf("many-%d", i), group, singleStack, ipv6))
		}
		for _, svc := range services {
			addrs = append(addrs, waitForAddresses(ctx, svc, 1)...)
		}
		bounds := []trial.Bound{atMost(longestFigure, longestOutageOfTwo)}
		runTrials(ctx, "100 addresses, holder dead", bounds, func(t *oneTrial) {
			forgetTrials(ctx)
			waitForRest(ctx, services[0])
			m := &watchedService{ctx: ctx, trial: t, addrs: addrs, holder: nodeNames()[t.random.IntN(len(nodeNames()))]}
			gatherAddresses(ctx, m.holder, func(g Gomega) bool {
				counts, _ := countHolders(ctx, g, group)
				return counts[m.holder] == many
			})
			waitUntilFollowed(ctx, m.holder, addrs)
			t.measureFromNow()
			meter := startLinkMeter(ctx, lab.Client, addrs)
			m.pause(3*time.Second + time.Duration(t.random.Int64N(int64(time.Second)))) // watchers arm 10 addresses in a round
			m.kill(noCarrier, m.holder)
			m.pause(longestOutageOfTwo)
			Eventually(func(g Gomega) {
				counts, _ := countHolders(ctx, g, group)
				g.Expect(counts[m.holder]).To(BeZero())
				others := m.others(m.holder)
				for _, node := range others {
					g.Expect(counts[node]).To(BeNumerically("~", many/len(others), many/10), "%v", counts)
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
			m.pause(time.Second)
			var silences []time.Duration
			for _, record := range meter.stop() {
				silences = append(silences, record.Figures().Silence)
			}
			t.stopMeasuring()
			slices.Sort(silences)
			t.Figures[longestFigure] = trial.Milliseconds(silences[many-1])
			t.Figures[usualFigure] = trial.Milliseconds(silences[many/2])
			m.revive(noCarrier, m.holder)
			for _, addr := range addrs {
				waitForPlaces(ctx, addr, 1)
			}
		})
	})
})

// linkMeter asks for many addresses by ARP or ND, each of them every linkMeterInterval.
type linkMeter struct {
	asker   *lab.Asker
	begun   time.Time
	cancel  context.CancelFunc
	wait    sync.WaitGroup
	mutex   sync.Mutex
	records map[netip.Addr]*lab.Record
	err     error
}

// linkMeterInterval is the time between two questions for the same address. They are asked in
// linkMeterTurns, so that the link has no bursts.
const (
	linkMeterInterval = 50 * time.Millisecond
	linkMeterTurns    = 10
)

// startLinkMeter starts a linkMeter of addresses of one family at a host of the lab.
func startLinkMeter(ctx context.Context, host string, addrs []netip.Addr) *linkMeter {
	GinkgoHelper()
	asker, err := lab.OpenAsker(host, addrs[0])
	Expect(err).NotTo(HaveOccurred())
	l := &linkMeter{asker: asker, begun: time.Now(), records: map[netip.Addr]*lab.Record{}}
	for _, addr := range addrs {
		l.records[addr] = &lab.Record{}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	l.wait.Go(func() { l.ask(ctx, addrs) })
	l.wait.Go(func() { l.listen(ctx) })
	return l
}

func (l *linkMeter) ask(ctx context.Context, addrs []netip.Addr) {
	tick := time.NewTicker(linkMeterInterval / linkMeterTurns)
	defer tick.Stop()
	for turn := 0; ctx.Err() == nil; turn++ {
		for i := turn % linkMeterTurns; i < len(addrs); i += linkMeterTurns {
			l.mutex.Lock() // also while asking: the answer must be noted after the question
			record := l.records[addrs[i]]
			record.WireRequests = append(record.WireRequests, time.Since(l.begun))
			l.err = errors.Join(l.err, l.asker.Ask(addrs[i]))
			l.mutex.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (l *linkMeter) listen(ctx context.Context) {
	for ctx.Err() == nil {
		addr, mac, at, ok := l.asker.Answer()
		if record := l.records[addr]; ok && record != nil {
			l.mutex.Lock()
			record.WireAnswers = append(record.WireAnswers, lab.Answer{At: at.Sub(l.begun), MAC: mac})
			l.mutex.Unlock()
		}
	}
}

// stop ends the measurement, and returns what was seen of each address.
func (l *linkMeter) stop() map[netip.Addr]*lab.Record {
	GinkgoHelper()
	end := time.Since(l.begun)
	l.cancel()
	l.wait.Wait()
	Expect(errors.Join(l.err, l.asker.Close())).To(Succeed())
	for _, record := range l.records {
		record.End = end
	}
	return l.records
}

// askFor makes a Service ask for addresses.
func askFor(addrs []netip.Addr) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		var texts []string
		for _, addr := range addrs {
			texts = append(texts, addr.String())
		}
		svc.Annotations[v1.AnnotationAddresses] = strings.Join(texts, ",")
	}
}

// cutAPI cuts nodes off the API server, until heal is called or the spec ends.
func (m *watchedService) cutAPI(nodes ...string) (heal func()) {
	GinkgoHelper()
	healAll := func(ctx context.Context) {
		for _, node := range nodes {
			_ = testLab.HealAPI(ctx, node) // the trial may have done it
		}
	}
	DeferCleanup(func(ctx SpecContext) { healAll(ctx) }, NodeTimeout(waitLimit))
	for _, node := range nodes {
		Expect(testLab.CutAPI(m.ctx, node)).To(Succeed())
	}
	return func() { healAll(m.ctx) }
}
