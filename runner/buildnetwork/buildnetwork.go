// Package buildnetwork opens networks for the commands of image builds. An engine's
// builder executes them in containers of its own, which are no sandboxes. They share the
// network namespace of a sandbox in which nothing else runs: it has no interface but
// loopback, on which its guest listens as in any sandbox with a network. So the same
// server decides about their connections, by the same rules, and records them.
package buildnetwork

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// Options configure the networks of builds. All but Log are required.
type Options struct {
	// Egress describes the hosts that commands may reach. Of its fields Policy, Private, Upstream and
	// Budget count: an image of a build trusts no certificates of Caisson's, so that
	// rules of https refuse.
	Egress runner.EgressOptions
	// Backend creates the sandboxes, on the engine that builds.
	Backend sandbox.Creator
	// StateDir is Caisson's state directory.
	StateDir string
	// Records is the directory of the records, which is made with the first of them: a
	// directory for each build with a network, with [RecordsFile] and, if requests were
	// seen, [record.RequestsFile].
	Records string
	// Log gets what can't be returned; nil discards it.
	Log *zap.Logger
}

// RecordsFile has the records of the connections of one build, as lines of JSON with the
// keys time, kind and data: that of [Begun] first, and then network.opened, network.closed
// and network.denied of package record.
const RecordsFile = "network.jsonl"

// call is the call of all connections of a build in records.
const call = "build"

// memory is the limit of memory of the sandbox in bytes, in which only the guest runs.
const memory = 128 << 20

// Open opens a network for the build of the directory dir. The caller must close it.
func Open(ctx context.Context, o Options, dir string) (_ *images.BuildNetwork, err error) {
	b := &build{opts: o, dir: dir}
	defer func() {
		if err != nil {
			_, closeErr := b.closeNetwork()
			err = errors.Join(err, closeErr)
		}
	}()
	if b.opts.Log == nil {
		b.opts.Log = zap.NewNop()
	}
	if b.session, err = sessiondir.Create(o.StateDir, nil); err != nil {
		return nil, err
	}
	if b.work, err = runner.MakeWorkspace(b.session); err != nil {
		return nil, err
	}
	b.records = &recordFile{dir: filepath.Join(o.Records, b.session.Session), first: Begun{Dir: dir, Session: b.session.Session}}
	for _, r := range o.Egress.Policy.Allow {
		b.records.first.Allow = append(b.records.first.Allow, r.Describe())
	}
	for _, r := range o.Egress.Policy.Deny {
		b.records.first.Deny = append(b.records.first.Deny, r.Describe())
	}
	b.network, err = network.New(network.Options{
		Policy: o.Egress.Policy, Private: o.Egress.Private, Upstream: o.Egress.Upstream, Budget: o.Egress.Budget, Capture: true,
		Dir: b.records.dir, Record: func(_ string, p record.Payload, sync bool) error { return b.records.writeRecord(p.Kind(), p, sync) }, Log: b.opts.Log,
	})
	if err != nil {
		return nil, err
	}
	_, b.refused = b.network.TrackCommand(call, "")
	plan := *b.network.Plan()
	plan.Shared = true
	resources := limits.DefaultResources()
	resources.MemoryBytes, resources.PIDs, resources.TmpBytes, resources.ShmBytes, resources.HomeBytes = memory, limits.MinPIDs, 1<<20, 1<<20, 1<<20
	b.sandbox, err = o.Backend.Create(ctx, sandbox.Spec{
		Session: b.session.Session, Image: images.Reference{Scheme: images.SchemeHost}, Dir: filepath.Join(b.session.Path, sessiondir.SandboxDir),
		Workspace: sandbox.Workspace{Path: b.work.Path, Dir: b.work.Dir}, Resources: resources, Egress: &plan,
	})
	if err != nil {
		return nil, err
	}
	if err := b.network.BindSandbox(ctx, b.sandbox); err != nil {
		return nil, err
	}
	proxy := map[string]string{}
	for _, v := range plan.ProxyVariables(0) {
		if name, value, _ := strings.Cut(v, "="); strings.HasSuffix(strings.ToUpper(name), "_PROXY") {
			proxy[name] = value
		}
	}
	return &images.BuildNetwork{Container: b.sandbox.Attestation().Container, Proxy: proxy, Close: b.closeNetwork}, nil
}

// build is the network of one build.
type build struct {
	opts    Options
	dir     string
	session *sessiondir.Dir
	work    *runner.Workspace
	records *recordFile
	network *network.Network
	sandbox sandbox.Sandbox
	refused func(ended bool) ([]shell.Refused, []string)
}

// closeTime bounds the removal of the sandbox.
const closeTime = time.Minute

// closeNetwork is Close of images.BuildNetwork, also for a network that was opened in part.
func (b *build) closeNetwork() (refused []string, err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTime, errors.New("the network of a build was not removed in time"))
	defer cancel()
	var errs []error
	if b.sandbox != nil {
		errs = append(errs, b.sandbox.Destroy(ctx))
	}
	if b.refused != nil {
		list, _ := b.refused(true)
		for _, r := range list {
			refused = append(refused, fmt.Sprintf("%s (%s)", r.Host, r.Reason))
		}
	}
	if b.network != nil {
		b.network.Close()
		errs = append(errs, b.records.closeFile())
	}
	if b.work != nil {
		errs = append(errs, b.work.Close(), sessiondir.RemoveWorkspace(b.opts.StateDir, b.session.Session))
	}
	if b.session != nil {
		errs = append(errs, b.session.Close())
	}
	return refused, errors.Join(errs...)
}
