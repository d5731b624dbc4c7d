//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fakeTarget(f *Fake) Target {
	return Target{
		Backend: f, Image: images.Reference{Scheme: images.SchemeHost},
		WritableImage: images.Reference{Scheme: images.SchemeName, Value: "fake"},
		UserImage: func(user string) images.Reference {
			return images.Reference{Scheme: images.SchemeName, Value: userImage + user}
		},
		Probe:      "none",
		FloodBytes: 4 << 20, LimitsKillSandbox: true, OwnKernel: true, NoOverlay: true, Copies: true, NoPrograms: true, quick: true,
		Kill: f.Kill, Pause: f.Pause, HostProcess: f.HostProcess, Leftovers: f.Leftovers,
	}
}

func TestFakePasses(t *testing.T) {
	target := fakeTarget(&Fake{})
	target.Probe = BuildProbe(t)
	Run(t, target)
}

func TestFakeNeighbours(t *testing.T) {
	target := fakeTarget(&Fake{})
	target.Probe = BuildProbe(t)
	RunNeighbours(t, target)
}

// found names the checks that each fault must fail, the one that is there for
// it first. No other may fail: a check that fails for everything tells nothing.
var found = map[Fault][]string{
	FaultRootKept:      {"a writable root is the sandbox's own"},
	FaultRootClosed:    {"a writable root is the sandbox's own", imageHomeCheck},
	FaultMergedStreams: {"streams are separate", "10 MiB on both streams", "single bytes on both streams", "missing and unusable programs"},
	FaultShellCodes:    {"exit codes are exact"},
	FaultNoDaemons: {
		"daemons are found and killed", "a timeout ends everything", "what is left after the end is killed",
		"a grandchild that holds stdout does not hold the command", "cancelling one command spares another", "stopped processes are killed", rootCheck, "commands of another identity end",
	},
	FaultKillAtOnce:      {"SIGTERM comes first", "cancel while it runs", "what a parent leaves at SIGTERM gets one too", "commands of another identity end"},
	FaultHostEnvironment: {"environment is what was given", "arguments arrive byte by byte"},
	FaultLostBytes:       {"a flood is counted, hashed and cut"},
	FaultOverlappingTail: {"a flood is counted, hashed and cut"},
	FaultRootOwner:       {"files belong to the workspace's owner", furtherMounts, rootCheck, imageUserCheck},
	FaultPrivileged:      {"commands have no privilege", "an exec gains nothing", "planted privilege gives none", rootCheck, otherIdentity, imageUserCheck},
	FaultLies:            {"the attestation is complete and true", rootCheck, imageUserCheck, "connections of programs reach their handler"},
	FaultLossIsExit: {
		"a killed container is lost, never a result", "memory", "processes", "a fresh sandbox knows nothing of the last", "destroy during commands",
		"a paused sandbox is lost, not waited for",
	},
	FaultLeaks:     append(fresh(), copyCheck, serviceRuns, unhealthyService, "sessions see nothing of each other", "a writable root is the sandbox's own", rootCheck, "root inside owns a writable root", furtherMounts, "the workspace is where it was asked for", imageUserCheck, imageHomeCheck),
	FaultAnyDir:    {"working directory", "a working directory can't lead out", "invalid commands are refused", "the workspace is where it was asked for"},
	FaultLinkedDir: {"a working directory can't lead out"},
	FaultNoPartial: {
		"cancel while it runs", "SIGTERM comes first", "what a parent leaves at SIGTERM gets one too", "daemons are found and killed", "cancelling one command spares another",
		"a timeout ends everything",
		"a process that ignores SIGTERM is killed", "stopped processes are killed", "a killed container is lost, never a result",
		"memory that no process holds", "timeouts hold under load", "every writable place is bounded", otherIdentity, serviceRuns, imageUserCheck,
	},
	FaultDeadlock:       {"a stalled reader delays no other stream"},
	FaultExecGains:      {"an exec gains nothing"},
	FaultSetuid:         {"planted privilege gives none"},
	FaultDescriptors:    {"the host's descriptors stay outside", "descriptors are stdin, stdout, stderr"},
	FaultRewritable:     {"no program that runs can be rewritten"},
	FaultHostSocket:     {"sockets and FIFOs of the host"},
	FaultSyscall:        {"forbidden system calls fail", rootCheck},
	FaultKernelFile:     {"files of the kernel are closed"},
	FaultMount:          {"the mounts are those that were planned"},
	FaultUnbounded:      {"every writable place is bounded", "temporary files"},
	FaultOtherKernel:    {"the kernel is the one that was asked for"},
	FaultTerminal:       {"there is no terminal"},
	FaultStrangers:      {"sessions see nothing of each other"},
	FaultStale:          {"a fresh sandbox knows nothing of the last"},
	FaultReplace:        {"the root's directories can't be replaced"},
	FaultQuoting:        {"arguments arrive byte by byte"},
	FaultSmallWrites:    {"single bytes on both streams"},
	FaultHoards:         {"an endless flood ends at its timeout, and memory is flat"},
	FaultNoTimeout:      {"a timeout ends everything", unhealthyService, "timeouts hold under load"},
	FaultEOFIsEnd:       {"closed streams end nothing"},
	FaultPrompts:        {"programs that ask get no answer"},
	FaultFilesLost:      {"out of files, then well again"},
	FaultForksLost:      {"forks can be had again"},
	FaultUnheldMemory:   {"memory that no process holds"},
	FaultStoppedLeft:    {"stopped processes are killed"},
	FaultPausedResult:   {"a paused sandbox is lost, not waited for"},
	FaultHostFile:       {"no host file outside the mounts"},
	FaultGuestOpen:      {"the guest can't be signalled or read", rootCheck, otherIdentity},
	FaultNetwork:        {"no network"},
	FaultWritableRoot:   {"the root is read-only", "a writable root is the sandbox's own", imageHomeCheck},
	FaultZombies:        {"orphans are reaped"},
	FaultCommonCause:    {"cancel before start"},
	FaultNoVariables:    {"environment is what was given", "the workspace is where it was asked for", "another identity makes no files in the workspace", imageUserCheck, imageHomeCheck},
	FaultAnySpec:        {"bad specs are refused and leave nothing", "mounts that lead elsewhere are refused"},
	FaultMountWritable:  {furtherMounts},
	FaultScratchLeft:    {furtherMounts},
	FaultSweepsLiving:   {"sweep spares the living"},
	FaultFullUnreported: {"a full place is reported"},
	FaultProcessors:     {"processors are those of the limit"},
	FaultOverlay:        {"an overlay leaves the workspace alone", "a copy-on-write mount leaves its directory alone"},
	FaultCopyIsNone:     {copyCheck},
	FaultCopyKeeps:      {copyCheck},
	FaultCopyModes:      {copyCheck},
	FaultCopyFollows:    {copyCheck},
	FaultCopyOpaque:     {copyCheck},
	FaultCopyStale:      {copyCheck},
	FaultTarget:         {"the workspace is where it was asked for"},
	FaultUnguarded:      {"the workspace is where it was asked for"},
	FaultStaleFiles:     {"host and sandbox see each other's files", furtherMounts, "another identity makes no files in the workspace"},
	FaultAnyPatch:       {"patch needs one match"},
	FaultManyFiles:      {"open files"},
	FaultOrphansWait:    {"what a parent leaves at SIGTERM gets one too"},
	FaultSetIDFile:      {"commands make no set-user-ID files"},
	FaultRootCapable:    {rootCheck},
	FaultRootEvades:     {rootCheck},
	FaultUserDropped:    {imageUserCheck, imageHomeCheck},
	FaultUserGroups:     {imageUserCheck},
	FaultUserHome:       {imageHomeCheck},
	FaultGroupFiles:     {imageUserCheck},
	FaultAnyUser:        {"an image's user that can't be is refused"},
	FaultRootOutside:    {rootCheck},
	FaultNoEnd:          {"destroy is idempotent and stops everything"},
	FaultOneUser:        {otherIdentity, serviceRuns, "another identity makes no files in the workspace", imageUserCheck},
	FaultOthersLeft:     {"commands of another identity end"},
	FaultForeignFiles:   {"another identity makes no files in the workspace"},
	FaultAnyIdentity:    {"identities out of range are refused"},
	FaultEgressAlways:   {egressNone},
	FaultEgressUnserved: {egressConns},
	FaultEgressOwner:    {egressConns},
	FaultEgressNumber:   {egressConns},
	FaultEgressHalf:     {egressConns, egressBound, egressStorm},
	FaultEgressLies:     {egressConns},
	FaultEgressOutlives: {egressOver},
	FaultEgressAny:      {egressBound},
	FaultEgressPlaces:   {egressStorm},
	FaultEgressRefuses:  {egressNames},
	FaultEgressAsks:     {egressNames},
	FaultEgressTaken:    {egressListeners},
	FaultEgressDiag:     {egressListeners},
	FaultEgressRoots:    {egressRoots},
	FaultNoBudget:       {ownBudget},
	FaultEgressReserved: {egressReserved},
	FaultEgressWritable: {egressRoots},
	FaultServiceEarly:   {serviceRuns, unhealthyService},
	FaultServiceAsAgent: {serviceRuns},
	FaultServiceLeft:    {unhealthyService},
}

// Checks that several faults fail.
const (
	serviceRuns      = "a service runs beside commands"
	unhealthyService = "a service that is not healthy ends the start"
	rootCheck        = "root inside is root nowhere else"
	otherIdentity    = "another identity is out of reach"
	furtherMounts    = "further mounts are what was asked for"
	imageUserCheck   = "commands are the image's user"
	imageHomeCheck   = "the image's user has its home"
)

// fresh names the checks that get a sandbox of their own, and see it destroyed.
func fresh() []string {
	var names []string
	for _, c := range allChecks() {
		if c.fresh {
			names = append(names, c.name)
		}
	}
	return names
}

// TestFaultyFakesFail shows that the checks can fail: each fault is found by
// the checks that are there for it, and by no others.
func TestFaultyFakesFail(t *testing.T) {
	probe := BuildProbe(t)
	names, controls := map[string]bool{}, &sync.Map{}
	for _, c := range allChecks() {
		names[c.name] = true
	}
	for fault, want := range found {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel() // most of the time they wait
			if !isRoot() && (fault == FaultRootOwner || fault == FaultSetuid) {
				t.Skip("needs root: only root makes files of another owner")
			}
			for _, name := range want {
				if !names[name] {
					t.Fatalf("no check %q", name)
				}
			}
			target := fakeTarget(&Fake{Fault: fault})
			target.Probe, target.controls = probe, controls
			var wait sync.WaitGroup
			slots := make(chan struct{}, 4)
			for _, c := range allChecks() {
				if c.programs {
					continue
				}
				// The peak of this process's memory is everybody's who runs now.
				if alone := c.name == "an endless flood ends at its timeout, and memory is flat"; !alone {
					slots <- struct{}{}
					wait.Go(func() {
						defer func() { <-slots }()
						findFault(t, target, c, slices.Contains(want, c.name))
					})
				} else if slices.Contains(want, c.name) {
					findFault(t, target, c, true)
				}
			}
			wait.Wait()
		})
	}
}

// findFault runs one check on a fake with a fault.
func findFault(t *testing.T, target Target, c check, expected bool) {
	t.Helper()
	// What is to fail may do so by a deadlock; what is to pass may take its time on a
	// machine that does a lot beside.
	most := checkTime
	if expected {
		most = 20 * time.Second
	}
	err := one(t, target, c, most)
	switch {
	case errors.Is(err, errSkip):
	case expected && err == nil:
		t.Errorf("check %q passes", c.name)
	case !expected && err != nil:
		t.Errorf("check %q fails, and is not there for this: %v", c.name, err)
	case err != nil:
		t.Logf("found by %q: %v", c.name, err)
	}
}

// one runs one check against one target, a deadlock being a failure of it.
func one(t *testing.T, target Target, c check, most time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	shared := newEnv(target, t.TempDir())
	if c.fresh { // it has a sandbox of its own
		return runCheck(ctx, c, shared, t.TempDir)
	}
	if err := shared.start(ctx, nil); err != nil {
		return err
	}
	defer shared.dir.Close()
	defer shared.sb.Destroy(context.WithoutCancel(ctx))
	return runCheck(ctx, c, shared, t.TempDir)
}

func TestCheckNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allChecks() {
		if seen[c.name] || c.name != strings.TrimSpace(c.name) {
			t.Errorf("name %q", c.name)
		}
		seen[c.name] = true
	}
	if len(seen) < 80 {
		t.Errorf("%d checks, want the whole suite", len(seen))
	}
}
