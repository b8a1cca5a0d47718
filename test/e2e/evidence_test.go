package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/lab"
)

// evidenceDir gets a folder for each spec that fails, with what the lab looked like before the
// spec was cleaned up.
var evidenceDir = flag.String("evidence", "../../dist/test/e2e", "folder for what is collected when a spec fails")

const (
	// evidenceLimit bounds how long collecting may take.
	evidenceLimit = 3 * time.Minute
	// evidenceCommandLimit bounds each single command.
	evidenceCommandLimit = 20 * time.Second
	// maxLogTail is how much is kept of the end of each log of the lab, in bytes.
	maxLogTail = 4 << 20
)

var notForFileNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// evidenceFolder returns the folder for what concerns a spec.
func evidenceFolder(spec string) string {
	name := strings.Trim(notForFileNames.ReplaceAllString(spec, "-"), "-")
	return filepath.Join(*evidenceDir, name[:min(len(name), 120)])
}

// evidence collects into one folder.
type evidence struct {
	folder string
	errs   []error
}

// collectEvidence writes what the cluster, the lab and the machine look like into a folder
// for a spec. It has to work when the API server is away or nothing works.
func collectEvidence(ctx context.Context, spec string) {
	ctx, cancel := context.WithTimeout(ctx, evidenceLimit)
	defer cancel()
	e := &evidence{folder: evidenceFolder(spec)}
	if err := os.MkdirAll(e.folder, 0o755); err != nil {
		GinkgoWriter.Printf("no evidence is collected: %v\n", err)
		return
	}
	e.collectMachine()
	e.collectHosts(ctx)
	e.collectLabLogs()
	e.collectCapture()
	// The API server may be away as the spec has stopped it.
	if err := testLab.StartControlPlane(ctx); err != nil {
		e.errs = append(e.errs, fmt.Errorf("the API server is away: %w", err))
	}
	e.collectObjects(ctx)
	e.collectPodLogs(ctx)
	if err := errors.Join(e.errs...); err != nil {
		e.write("not-collected.txt", []byte(err.Error()+"\n"))
	}
	folder, err := filepath.Abs(e.folder)
	if err != nil {
		folder = e.folder
	}
	GinkgoWriter.Printf("evidence: %s\n", folder)
}

// write writes a file of the folder.
func (e *evidence) write(name string, data []byte) {
	if err := os.WriteFile(filepath.Join(e.folder, name), data, 0o644); err != nil {
		e.errs = append(e.errs, err)
	}
}

// run runs a command, and writes its output to a file.
func (e *evidence) run(ctx context.Context, file string, argv ...string) {
	ctx, cancel := context.WithTimeout(ctx, evidenceCommandLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %w", strings.Join(argv, " "), err))
	}
	e.write(file, out)
}

// collectMachine writes how busy the machine is.
func (e *evidence) collectMachine() {
	var text strings.Builder
	for _, file := range []string{
		"/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/meminfo",
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			e.errs = append(e.errs, err) // a kernel may have no pressure information
			continue
		}
		fmt.Fprintf(&text, "%s\n%s\n", file, data)
	}
	e.write("machine.txt", []byte(text.String()))
}

// collectHosts writes addresses, routes, neighbours and packet filters of all hosts.
func (e *evidence) collectHosts(ctx context.Context) {
	hosts := []string{lab.Fabric}
	for _, h := range testLab.Hosts() {
		hosts = append(hosts, h.Name)
	}
	for _, host := range hosts {
		script := `for c in "ip -d address" "ip -4 route show table all" "ip -6 route show table all" "ip rule" "ip neigh" ` +
			`"nft list ruleset"; do echo "# $c"; $c; echo; done`
		if host == lab.Fabric {
			script += `; echo "# bridge fdb"; bridge fdb; bridge link`
		}
		e.run(ctx, "host-"+host+".txt", lab.ExecArgv(host, "sh", "-c", script)...)
	}
}

// collectLabLogs copies the ends of the lab's logs: those of kubelets, kube-proxies,
// containerd, the control plane and routing daemons.
func (e *evidence) collectLabLogs() {
	err := filepath.WalkDir(testLab.Logs(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := readTail(path)
		if err != nil {
			return err
		}
		e.write("lab-"+entry.Name(), data)
		return nil
	})
	if err != nil {
		e.errs = append(e.errs, err)
	}
}

// readTail reads the end of a file.
func readTail(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(max(0, info.Size()-maxLogTail), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// collectCapture copies the ring of captured packets.
func (e *evidence) collectCapture() {
	files, err := filepath.Glob(filepath.Join(captureFolder(), "*"))
	if err != nil {
		e.errs = append(e.errs, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			e.errs = append(e.errs, err)
			continue
		}
		e.write(filepath.Base(file), data)
	}
}

// collectObjects writes PureLB's objects and those that it acts on.
func (e *evidence) collectObjects(ctx context.Context) {
	get := func(file string, args ...string) {
		e.run(ctx, file, append([]string{
			*kubectlProgram, "--kubeconfig", testLab.Kubeconfig(), "--request-timeout=15s", "get", "-A", "-o",
		}, args...)...)
	}
	get("objects.txt", "wide", "services,pods,nodes,leases,deployments,daemonsets,endpointslices")
	get("events.txt", "wide", "events", "--sort-by=.metadata.creationTimestamp")
	get("purelb.txt", "wide", "purelb")
	for _, what := range []string{
		"servicegroups", "lbnodeagents", "announcements", "commonannouncements", "bgppeers", "noderoutings",
	} {
		get(what+".yaml", "yaml", what+".purelb.io")
	}
	for _, what := range []string{
		"services", "pods", "nodes", "leases", "deployments", "daemonsets", "endpointslices", "events",
		"validatingwebhookconfigurations",
	} {
		get(what+".yaml", "yaml", what)
	}
}

// collectPodLogs writes the logs of all containers of PureLB, also of their previous
// instances.
func (e *evidence) collectPodLogs(ctx context.Context) {
	pods := &corev1.PodList{}
	if err := kubeClient.List(ctx, pods, client.InNamespace(purelbNamespace)); err != nil {
		e.errs = append(e.errs, err)
		return
	}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			logs := []string{
				*kubectlProgram, "--kubeconfig", testLab.Kubeconfig(), "--request-timeout=15s", "-n", purelbNamespace, "logs",
				pod.Name, "-c", c.Name,
			}
			e.run(ctx, "log-"+pod.Name+"-"+c.Name+".txt", logs...)
			if c.RestartCount > 0 {
				e.run(ctx, "log-"+pod.Name+"-"+c.Name+"-previous.txt", append(logs, "--previous")...)
			}
		}
	}
}

// captureFolder has the ring of captured packets while the suite runs.
func captureFolder() string { return filepath.Join(*evidenceDir, "capture") }

// startCapture captures neighbour discovery and HTTP on the nodes' link, and keeps the last
// 20 MB, until stop is called.
func startCapture() (stop func() error, err error) {
	if err := os.RemoveAll(captureFolder()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(captureFolder(), 0o755); err != nil {
		return nil, err
	}
	// timeout ends the capture when the suite was killed before it could.
	argv := lab.ExecArgv(lab.Fabric, "timeout", "4h", "tcpdump", "-Z", "root", "-n", "-U", "-s", "200", "-C", "5", "-W",
		"4",
		"-i", "br0", "-w", filepath.Join(captureFolder(), "link.pcap"), "arp or icmp6 or tcp port 80")
	command := exec.Command(argv[0], argv[1:]...)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("capture packets: %w", err)
	}
	return func() error {
		signalErr := command.Process.Signal(syscall.SIGTERM)
		err := command.Wait() // says that a signal has ended it
		if signalErr != nil {
			return fmt.Errorf("the capture has ended by itself: %w: %s", err, output.String())
		}
		return os.RemoveAll(captureFolder())
	}, nil
}

// describeFailures returns all failures of a spec, also those of its cleanup.
func describeFailures(report SpecReport) string {
	indent := func(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") }
	name := report.FullText()
	if name == "" {
		name = report.LeafNodeType.String()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "FAILED: %s\n    at %s\n    %s\n", name, report.Failure.Location, indent(report.Failure.Message))
	if report.Failure.AdditionalFailure != nil {
		fmt.Fprintf(
			&text, "    then at %s\n    %s\n", report.Failure.AdditionalFailure.Failure.Location,
			indent(report.Failure.AdditionalFailure.Failure.Message),
		)
	}
	for _, more := range report.AdditionalFailures {
		fmt.Fprintf(
			&text, "    also in %s at %s\n    %s\n", more.Failure.FailureNodeContext, more.Failure.Location,
			indent(more.Failure.Message),
		)
	}
	return text.String()
}

// writeFailures writes all failures of a spec into its folder of evidence.
func writeFailures(report SpecReport) {
	folder := evidenceFolder(report.FullText())
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		text := describeFailures(report) + "\n" + report.CapturedGinkgoWriterOutput
		err = os.WriteFile(filepath.Join(folder, "failures.txt"), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Printf("the failures of %s are not kept: %v\n", report.FullText(), err)
	}
}
