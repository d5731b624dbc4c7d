//go:build linux

package sandboxtest

// Fault is one deliberate defect of a [Fake].
type Fault string

// The faults. The zero value is none.
const (
	FaultMergedStreams   Fault = "stderr goes to stdout"
	FaultShellCodes      Fault = "codes over 128 become signals"
	FaultNoDaemons       Fault = "daemons survive a kill"
	FaultKillAtOnce      Fault = "SIGKILL without SIGTERM"
	FaultHostEnvironment Fault = "the host's environment is inherited"
	FaultNoVariables     Fault = "the session's variables are dropped"
	FaultLostBytes       Fault = "the count stops at the cut"
	FaultOverlappingTail Fault = "the tail repeats live bytes"
	FaultRootOwner       Fault = "new files belong to root"
	FaultPrivileged      Fault = "commands keep capabilities"
	FaultLies            Fault = "the attestation repeats the request"
	FaultLossIsExit      Fault = "a lost container is exit code 137"
	FaultLeaks           Fault = "destroy leaves a container"
	FaultAnyDir          Fault = "the working directory is not checked"
	FaultLinkedDir       Fault = "a working directory without symlinks has some"
	FaultNoPartial       Fault = "a cancelled command loses its output"
	FaultDeadlock        Fault = "one stalled reader stops all"

	FaultExecGains      Fault = "an exec gives capabilities back"
	FaultSetuid         Fault = "setuid programs work"
	FaultDescriptors    Fault = "a descriptor of the host's is inherited"
	FaultRewritable     Fault = "the guest's program can be written"
	FaultHostSocket     Fault = "a socket of the host's can be reached"
	FaultSyscall        Fault = "one forbidden call is let through"
	FaultKernelFile     Fault = "a file of the kernel can be written"
	FaultMount          Fault = "a directory of the host's is mounted too"
	FaultUnbounded      Fault = "a tmpfs has no size"
	FaultOtherKernel    Fault = "another kernel than was asked for"
	FaultTerminal       Fault = "commands have a terminal"
	FaultStrangers      Fault = "sessions share /tmp"
	FaultStale          Fault = "a container is used again"
	FaultReplace        Fault = "directories of the root can be replaced"
	FaultQuoting        Fault = "arguments go through a shell"
	FaultSmallWrites    Fault = "single bytes are lost"
	FaultHoards         Fault = "all output is kept in memory"
	FaultNoTimeout      Fault = "timeouts are not kept"
	FaultEOFIsEnd       Fault = "the end of output is taken for the command's"
	FaultPrompts        Fault = "commands wait for a terminal's answer"
	FaultFilesLost      Fault = "descriptors are not given back"
	FaultForksLost      Fault = "processes are not given back"
	FaultUnheldMemory   Fault = "tmpfs holds more than the memory limit"
	FaultStoppedLeft    Fault = "stopped processes are left"
	FaultPausedResult   Fault = "a paused sandbox gives results"
	FaultHostFile       Fault = "a file beside the workspace can be read"
	FaultGuestOpen      Fault = "the guest's memory can be read"
	FaultNetwork        Fault = "there is a network"
	FaultWritableRoot   Fault = "the root is writable"
	FaultZombies        Fault = "orphans are not reaped"
	FaultCommonCause    Fault = "a cancelled start has no cause"
	FaultAnySpec        Fault = "bad specs are taken"
	FaultMountWritable  Fault = "read-only mounts can be written"
	FaultScratchLeft    Fault = "scratch directories are left"
	FaultSweepsLiving   Fault = "sweep says that it removed a living session"
	FaultFullUnreported Fault = "a full place is not reported"
	FaultProcessors     Fault = "programs see the machine's processors"
	FaultOverlay        Fault = "an overlay's changes go to the workspace"
	FaultCopyIsNone     Fault = "a copy is the workspace itself"
	FaultCopyKeeps      Fault = "a copy's deletions are not collected"
	FaultCopyModes      Fault = "a copy's modes are not collected"
	FaultCopyFollows    Fault = "a copy's symlinks are followed"
	FaultCopyOpaque     Fault = "a copy's directories hide those of the workspace"
	FaultCopyStale      Fault = "a copy's files are collected without content"
	FaultTarget         Fault = "the workspace is where it always is"
	FaultUnguarded      Fault = "a repository can be written"
	FaultStaleFiles     Fault = "the host's writes are not seen"
	FaultAnyPatch       Fault = "a patch takes the first of several matches"
	FaultManyFiles      Fault = "open files are not limited"
	FaultOrphansWait    Fault = "what a parent leaves at SIGTERM waits for SIGKILL"
	FaultSetIDFile      Fault = "commands make set-user-ID files"
	FaultRootKept       Fault = "the layer of a root is used again"
	FaultRootClosed     Fault = "a root stays read-only"
	FaultRootCapable    Fault = "root inside has all capabilities"
	FaultRootEvades     Fault = "what a root command hides outlives it"
	FaultUserDropped    Fault = "commands are not the image's user"
	FaultUserGroups     Fault = "another identity has the groups of the image's user"
	FaultUserHome       Fault = "the image's user has another home"
	FaultGroupFiles     Fault = "a group of the image opens files of the host's"
	FaultAnyUser        Fault = "any USER is taken"
	FaultRootOutside    Fault = "root inside is root of the host"
	FaultNoEnd          Fault = "a destroyed sandbox takes commands"
	FaultOneUser        Fault = "all identities are one user"
	FaultOthersLeft     Fault = "daemons of another identity survive a kill"
	FaultForeignFiles   Fault = "another identity creates files in the workspace"
	FaultAnyIdentity    Fault = "any number is an identity"
	FaultServiceEarly   Fault = "the start does not wait for its service"
	FaultServiceAsAgent Fault = "the service runs as the agent's user"
	FaultEgressAlways   Fault = "there are listeners without a plan"
	FaultEgressUnserved Fault = "connections without a handler are ended"
	FaultEgressOwner    Fault = "all connections are one user's"
	FaultEgressNumber   Fault = "connections belong to no command"
	FaultEgressHalf     Fault = "the end of one direction ends both"
	FaultEgressLies     Fault = "listeners are not attested"
	FaultEgressOutlives Fault = "connections outlive their command"
	FaultEgressAny      Fault = "any number of connections is open"
	FaultEgressPlaces   Fault = "the place of a reset connection is not given back"
	FaultEgressRefuses  Fault = "names that are none are refused"
	FaultEgressAsks     Fault = "the handler is asked for every record"
	FaultEgressTaken    Fault = "a command listens beside the guest"
	FaultEgressDiag     Fault = "commands may ask for the sockets of others"
	FaultEgressRoots    Fault = "certificates are not made known"
	FaultEgressWritable Fault = "certificates can be written"
	FaultServiceLeft    Fault = "a sandbox with an unhealthy service is left"
)

// bendAnswer turns the right answer of a verb into the one of a fault.
func (f Fault) bendAnswer(verb, right string) string {
	wrong, ok := bends[f][verb]
	if !ok {
		return right
	}
	return wrong(right)
}

// replaceWith returns a function that replaces any answer; appendText returns
// one that adds to it.
func replaceWith(text string) func(string) string { return func(string) string { return text } }

func appendText(text string) func(string) string {
	return func(right string) string { return right + text }
}

// bends are the faults that show in what a probe tells.
var bends = map[Fault]map[string]func(string) string{
	FaultRewritable:   {"overwrite": appendText("/.caisson/guest\n")},
	FaultHostSocket:   {"connect": appendText("host.sock\n")},
	FaultKernelFile:   {"kernel-files": appendText("write /proc/sys/kernel/core_pattern\n")},
	FaultMount:        {"mountinfo": appendText("99 1 8:1 / /host rw,relatime - ext4 /dev/sda1 rw\n")},
	FaultUnbounded:    {"fill": replaceWith("67108864 none\n")},
	FaultOtherKernel:  {"version": replaceWith("Linux version 2.4.18\n")},
	FaultTerminal:     {"terminal": appendText("controlling terminal\n")},
	FaultReplace:      {"replace": appendText("/dev\n")},
	FaultUnheldMemory: {"hold": replaceWith("none\n")},
	FaultHostFile:     {"grep-files": appendText("/proc/1/root/canary\n")},
	FaultGuestOpen:    {"attack-guest": appendText("/proc/1/mem\n")},
	FaultNetwork:      {"dial": appendText("192.0.2.1:80\n")},
	FaultWritableRoot: {"writable": appendText("/etc\n")},
	FaultZombies:      {"zombies": replaceWith("17\n")},
	FaultProcessors:   {"processors": replaceWith("64\n")},
	FaultEgressDiag:   {"attempt": replaceWith("allowed")},
	FaultEgressTaken:  {"egress-bind": appendText("127.80.0.1:61080 0\n")},
	FaultManyFiles:    {"open-files": replaceWith("1048576\n")},
}
