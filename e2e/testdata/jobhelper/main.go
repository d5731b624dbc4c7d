// Command jobhelper is what the container jobs of the end-to-end tests run beside
// Caisson: an init, what attackers look for in a job, the attackers, a registry
// and a user at a terminal.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/caisson-run/caisson/sandbox/oci"
)

var verbs = map[string]func(args []string) error{
	"init": reap, "processes": printProcesses, "namespaces": printNamespaces, "registry": serveImage, "terminal": useTerminal,
	"bait": layBait, "exchange": exchangeNames, "attack": attackJob, "race": raceLinks, "reach": reachProcesses,
}

func main() {
	if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "jobhelper:", err)
		os.Exit(1)
	}
}

// reap is an init: it waits for the orphans of its container.
func reap([]string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD, syscall.SIGTERM)
	for s := range ended {
		if s == syscall.SIGTERM {
			return nil
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// process is a process that is no zombie.
type process struct {
	PID, Parent int
	Name        string
	Command     string
}

// allProcesses returns the processes of the container except this one.
func allProcesses() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it ended
		}
		head, rest, _ := strings.Cut(string(stat), ") ")
		_, comm, _ := strings.Cut(head, "(")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, err
		}
		command, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		all = append(all, process{pid, parent, comm, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))})
	}
	return all, nil
}

func printProcesses([]string) error {
	all, err := allProcesses()
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(all))
}

// printNamespaces prints "made" for each of a user namespace and a mount that
// this process can make, else the error.
func printNamespaces([]string) error {
	for what, err := range map[string]error{"user namespace": oci.TryUserNamespace(), "mount": oci.TryMount()} {
		if err == nil {
			err = errors.New("made")
		}
		fmt.Printf("%s: %v\n", what, err)
	}
	return nil
}

// serveImage serves an archive's image from a registry: ADDRESS REFERENCE FILE.
func serveImage(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(l, registry.New()) }()
	image, err := tarball.ImageFromPath(args[2], nil)
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(args[1])
	if err != nil {
		return err
	}
	if err := remote.Write(ref, image); err != nil {
		return err
	}
	fmt.Println("ready")
	return <-failed
}
