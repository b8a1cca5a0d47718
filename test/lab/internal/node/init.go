package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Init is process 1 of a node. It returns only if the node cannot be set up.
// Its own output is the node's log; each service has a log beside it. It calls
// startLogin when the system bus is there, before the kubelet looks for it.
func Init(c Config, startLogin func() error) error {
	// Open before the node's own /var covers them.
	images, err := openAll(c.Images)
	if err != nil {
		return err
	}
	var list []*service
	bus, containerd, kubelet, proxy := services(c)
	for _, s := range []*service{
		{name: "dbus-daemon", argv: bus},
		{name: "containerd", argv: containerd},
		{name: "kubelet", argv: kubelet},
		{name: "kube-proxy", argv: proxy},
	} {
		path := filepath.Join(c.Logs, c.Name+"-"+s.name+".log")
		if s.log, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return fmt.Errorf("open the log of %s: %w", s.name, err)
		}
		list = append(list, s)
	}

	if err := mountAll(c); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}

	if err := os.Mkdir(filepath.Dir(busSocket), 0o755); err != nil {
		return fmt.Errorf("make the folder of the system bus: %w", err)
	}
	for _, s := range list[:2] {
		if err := s.start(); err != nil {
			return err
		}
	}
	if err := wait("the system bus", 30*time.Second, startLogin); err != nil {
		return err
	}
	if err := waitContainerd(30 * time.Second); err != nil {
		return err
	}
	for _, image := range images {
		if err := importImage(image); err != nil {
			return err
		}
	}
	if err := waitListening(c.APIServer.String(), time.Minute); err != nil {
		return err
	}
	for _, s := range list[2:] {
		if err := s.start(); err != nil {
			return err
		}
	}
	say("the node runs")
	return supervise(list)
}

// service is a program that is started again when it ends.
type service struct {
	name string
	argv []string
	log  *os.File
	pid  int
}

func (s *service) start() error {
	path, err := exec.LookPath(s.argv[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", s.name, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	defer null.Close()
	// Not exec.Cmd: supervise waits for all children at once.
	p, err := os.StartProcess(path, s.argv, &os.ProcAttr{
		Dir:   "/",
		Files: []*os.File{null, s.log, s.log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.pid = p.Pid
	return p.Release()
}

// supervise does what process 1 is for: it waits for every process that ends,
// its own children and orphans, and starts services again.
func supervise(list []*service) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for processes: %w", err)
		}
		for _, s := range list {
			if s.pid != pid {
				continue
			}
			say(fmt.Sprintf("%s ended (status %d, signal %d): starting it again",
				s.name, status.ExitStatus(), status.Signal()))
			time.Sleep(time.Second)
			if err := s.start(); err != nil {
				return err
			}
		}
	}
}

// waitContainerd waits until containerd answers.
func waitContainerd(timeout time.Duration) error {
	return wait("containerd", timeout, func() error {
		return exec.Command("ctr", "version").Run()
	})
}

// waitListening waits until something listens at address.
func waitListening(address string, timeout time.Duration) error {
	return wait("the API server", timeout, func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func wait(what string, timeout time.Duration, try func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func importImage(file *os.File) error {
	defer file.Close()
	command := exec.Command("ctr", ImportArgs()...)
	command.Stdin = file
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image %s: %w: %s", file.Name(), err, text)
	}
	return nil
}

// ImportArgs are the arguments with which ctr imports an image from its
// standard input to where the kubelet finds it.
func ImportArgs() []string { return []string{"--namespace", "k8s.io", "images", "import", "-"} }

func openAll(paths []string) ([]*os.File, error) {
	var files []*os.File
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("open an image: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

func say(what string) {
	fmt.Println(time.Now().Format(time.RFC3339), what)
}
