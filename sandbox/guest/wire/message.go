package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Version is the protocol's version. Host and guest are built together and must
// have the same.
const Version = 4

// Channels of a stream.
const (
	Stdin  = 0 // host to guest: standard input, the body of a request
	Stdout = 1 // guest to host: standard output, the body of an answer
	Stderr = 2 // guest to host: standard error
)

// Open asks for a stream. Exactly one field is set.
//
//	{"exec":{"argv":["c2g=","LWM="],"env":[],"dir":"c3Jj","stdin":false,"live":16777216,"tail":32768,…}}
//	{"apply":{"size":213}}
//	{"read":{"kind":"file","path":"YS5nbw==","most":65536}}
//	{"accept":{"local":"127.80.0.7:61080","uid":10001}}
//	{"lookup":{"name":"example.com"}}
type Open struct {
	Exec   *Exec        `json:"exec,omitempty"`   // host: run a command
	Apply  *Apply       `json:"apply,omitempty"`  // host: change the workspace
	Read   *ReadRequest `json:"read,omitempty"`   // host: read the workspace
	Accept *Accept      `json:"accept,omitempty"` // guest: a program made a connection
	Lookup *Lookup      `json:"lookup,omitempty"` // guest: a program looked a name up
}

// Exec asks the guest to run a command. Arguments are byte strings, as in
// Linux: JSON text can't carry invalid UTF-8.
type Exec struct {
	Argv [][]byte `json:"argv"`
	Env  [][]byte `json:"env"`
	// Dir is relative to the workspace; empty means the workspace, or the home
	// of an identity other than 0.
	Dir []byte `json:"dir,omitempty"`
	// Identity is 0 for the commands' own user and group, otherwise an offset
	// from Config.IdentityBase.
	Identity int `json:"identity,omitempty"`
	// NoLinks forbids symlinks in Dir.
	NoLinks bool `json:"no_links,omitempty"`
	// Stdin reports that channel 0 will be written; otherwise standard input is
	// /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// Terminal makes a new terminal of this size the command's standard
	// streams and controlling terminal. Its output is on channel 1. Input needs
	// Stdin; the end of channel 0 types the end-of-file character.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Live and Tail bound each output stream, in bytes; see
	// sandbox.OutputLimits. Tail is at most [MaxTail].
	Live int64 `json:"live"`
	Tail int   `json:"tail"`
	// Timeout and Grace are in nanoseconds and positive.
	Timeout time.Duration `json:"timeout"`
	Grace   time.Duration `json:"grace"`
	// Budget bounds what the command uses; nil means no bound.
	Budget *Budget `json:"budget,omitempty"`
}

// TerminalSize is a terminal's size in character cells; zero means unknown.
type TerminalSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Encode returns the payload of a resize frame: rows and columns, each a u16.
func (s TerminalSize) Encode() []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Columns)
}

// TerminalSizeOf returns the size in a resize frame.
func TerminalSizeOf(f Frame) TerminalSize {
	return TerminalSize{Rows: binary.BigEndian.Uint16(f.Payload), Columns: binary.BigEndian.Uint16(f.Payload[2:])}
}

// MaxTail bounds Exec.Tail, so that an [Exit] with two tails fits a frame.
const MaxTail = 1 << 20

// Apply asks the guest to change the workspace. The operation, a workspace.Op
// of Size bytes as JSON, follows on channel 0.
type Apply struct {
	Size int64 `json:"size"`
}

// MaxOp bounds Apply.Size: the content of the largest write in base64, and as
// much for the texts of a patch.
const MaxOp = 48 << 20

// MaxChange bounds a workspace.Change as JSON: the largest previous content of
// a file (1 MiB) in base64, and paths.
const MaxChange = 2 << 20

// Started announces that the command runs.
//
//	{"pid":7}
type Started struct {
	PID int `json:"pid"`
}

// Refused says why a stream never began.
//
//	{"code":"invalid","text":"working directory \"../x\" leads outside the workspace"}
type Refused struct {
	Code RefusalCode `json:"code"`
	Text string      `json:"text"`
}

// RefusalCode classifies a refusal.
type RefusalCode string

// The classes of a refusal.
const (
	RefusedInvalid     RefusalCode = "invalid"     // it could never be run as given
	RefusedBusy        RefusalCode = "busy"        // too many streams are open
	RefusedUnsupported RefusalCode = "unsupported" // this side serves no such stream
	RefusedInternal    RefusalCode = "internal"    // the guest's own trouble
)

// Budget bounds what a command's processes use together; zero means no bound.
// The guest checks it from time to time and kills a command that exceeds it.
//
//	{"tasks":64,"memory":268435456}
type Budget struct {
	Tasks  int   `json:"tasks,omitempty"` // processes and threads
	Memory int64 `json:"memory,omitempty"`
}

// Exceeded is the use by which a command exceeded its [Budget]. One field is set.
type Exceeded struct {
	Tasks  int64 `json:"tasks,omitempty"`
	Memory int64 `json:"memory,omitempty"`
}

// Cancel asks the server to end a stream's work: for a command SIGTERM, the
// grace period, SIGKILL. A second one changes nothing.
//
//	{}
//	{"kill":true}
type Cancel struct {
	// Kill sends SIGKILL at once, without a grace period. It resets a relay's
	// connection; without it the program gets everything sent before eof.
	Kill bool `json:"kill,omitempty"`
}

// Exit is how a command ended; see sandbox.Exit.
//
//	{"code":0,"stdout":{"total":3,"sha256":"98ea…","live":3},"stderr":{…},"wall":1200000,…,"kill":{"left":0}}
type Exit struct {
	Code       int           `json:"code"`
	Signal     int           `json:"signal,omitempty"`
	OOMKilled  bool          `json:"oom_killed,omitempty"`
	TimedOut   bool          `json:"timed_out,omitempty"`
	Cancelled  bool          `json:"cancelled,omitempty"`
	Stdout     Output        `json:"stdout"`
	Stderr     Output        `json:"stderr"`
	Wall       time.Duration `json:"wall"`
	CPU        time.Duration `json:"cpu"`
	PeakMemory int64         `json:"peak_memory"`
	Kill       Kill          `json:"kill"`

	PIDsLimitHit bool     `json:"pids_limit_hit,omitempty"`
	Full         []string `json:"full,omitempty"`
	// Exceeded is why the guest killed the command, nil unless it did.
	Exceeded *Exceeded `json:"exceeded,omitempty"`
}

// Output is one output stream of a finished command; see sandbox.Stream.
type Output struct {
	Total  int64  `json:"total"`
	SHA256 string `json:"sha256"`
	Live   int64  `json:"live"`
	Tail   []byte `json:"tail,omitempty"`
}

// Kill is the proof of a kill; see sandbox.KillReport.
type Kill struct {
	Method     string        `json:"method,omitempty"`
	Terminated int           `json:"terminated,omitempty"`
	Killed     int           `json:"killed,omitempty"`
	AfterExit  bool          `json:"after_exit,omitempty"`
	Left       int           `json:"left"`
	KillTime   time.Duration `json:"kill_time,omitempty"`
}

// Applied ends an apply stream. The change on channel 1 is valid after an error
// too: a delete may have removed some files.
//
//	{}
//	{"error":{"kind":"escape","path":"../x","detail":"leads outside the workspace"}}
//	{"cancelled":true}
type Applied struct {
	Error     *OpError `json:"error,omitempty"`
	Cancelled bool     `json:"cancelled,omitempty"`
}

// OpError is a workspace.Error without its private parts.
type OpError struct {
	Kind   string `json:"kind"`
	Path   string `json:"path"`
	Detail string `json:"detail"`
}

// Decode reads a control payload into v. An unknown field, a wrong type or more
// than one value is [ErrProtocol].
func Decode(payload []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: decode %T: %w", ErrProtocol, v, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: decode %T: more than one value", ErrProtocol, v)
	}
	return nil
}

// CreditOf returns the number in a credit frame.
func CreditOf(f Frame) uint32 { return binary.BigEndian.Uint32(f.Payload) }
