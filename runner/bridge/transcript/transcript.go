// Package transcript makes the messages of conversations from the bodies of foreign
// agents' requests to models, and of the answers.
//
// # Threads
//
// A request repeats its whole conversation. A session has several: the agent's own,
// those of its subagents, and calls for a title or a summary. Each is a thread. Two
// messages are the same if their roles, texts, tools' names, arguments and results are.
// White space, IDs, reasoning and members such as cache_control don't count, since
// agents change them. A request belongs to the first thread of these:
//
//   - the thread whose messages all begin the request
//   - the thread whose last answer stands in its place in the request, with the same
//     IDs of calls, or the same text if it has no calls: the agent shortened or changed
//     earlier messages, which are not returned again
//   - the thread that shares all messages but those of its last call with the request:
//     the agent repeated the call, changed or dropped what was last, or asked a question
//     aside. Only the messages that differ are returned. A thread of one call must share
//     that call's whole request
//   - a new thread, from the last message that it shares with another. So a compaction
//     begins a new thread
//
// Threads never share messages if less than half of the lines of their instructions
// are the same. The instructions are the first message of a thread that shares none,
// with the role system.
package transcript

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/bridge"
)

// Bounds of a [Transcript]. A session has far less.
const (
	maxMessages = 1 << 18
	maxThreads  = 10_000
	// maxElements bounds the messages, parts and calls of a body together.
	maxElements = 100_000
)

var errTooMany = errors.New("too many messages")

// Transcript follows the conversations of one session. It keeps hashes of messages, and
// none of their text. The zero value is ready to use. It is not safe for concurrent use.
type Transcript struct {
	threads []thread
	// kinds are the different instructions of threads.
	kinds []sketch
	// known are the messages so far, by their paths.
	known map[hash]place
	// answers are the threads by their last answers.
	answers map[hash]int
}

// hash names a message by its content, or by its path: its content and that of all
// messages before it.
type hash [16]byte

// place is where a message stands. Its path differs from the one it was found by if
// the messages before it were changed.
type place struct {
	path   hash
	thread int
}

// point is a place in a thread.
type point struct {
	path  hash
	depth int // the number of messages up to it
}

type thread struct {
	// head is the last message, asked the last message of the last request, and before
	// the last message before the last call.
	head, asked, before point
	answer              hash // its key in answers
}

// Add returns the messages that a call adds to a conversation: the new ones of its
// request, then its answer, as far as it arrived. Threads are numbered from 1.
//
// The answer is a JSON text or a stream of events. A refusal, or an answer that is
// neither, adds nothing. Endpoints that only count tokens have no conversations: their
// calls must not be added.
//
// IDs of tool calls are unique in the session, and a result has its call's ID. Images
// and documents are replaced by their type and size.
//
// An error means that the request has no conversation of the protocol, or that the
// session has too many messages. Then nothing is added.
func (t *Transcript) Add(p bridge.Protocol, request, answer []byte) (number int, added []loop.Message, err error) {
	asked, err := readRequest(p, request)
	if err != nil {
		return 0, nil, err
	}
	answered := readAnswer(p, answer)
	if len(t.known)+len(asked.messages)+len(answered) > maxMessages || len(t.threads) >= maxThreads {
		return 0, nil, errTooMany
	}
	if t.known == nil {
		t.known, t.answers = map[hash]place{}, map[hash]int{}
	}
	kind := t.findKind(sketchOf(asked.system.String()))
	paths := make([]hash, 1, len(asked.messages)+1)
	paths[0] = kind
	paths = t.follow(paths, asked.messages)
	n, from := t.findThread(kind, paths, asked.messages)
	if n < 0 {
		n = len(t.threads)
		t.threads = append(t.threads, thread{before: point{paths[from], from}})
		if system := asked.system.String(); from == 0 && system != "" {
			added = append(added, loop.NewText(loop.RoleSystem, boundary.Text(system)))
		}
	}
	calls := callIDs{}
	for i, m := range asked.messages {
		calls.assign(m, paths[i+1])
		if i >= from {
			added = append(added, m)
		}
	}
	for i := from + 1; i < len(paths); i++ {
		t.known[paths[i]] = place{paths[i], n}
	}
	return n + 1, t.addAnswer(n, kind, paths, answered, calls, added), nil
}

// follow returns the paths of messages after the given ones.
func (t *Transcript) follow(paths []hash, messages []loop.Message) []hash {
	for _, m := range messages[len(paths)-1:] {
		next := hashOf(paths[len(paths)-1], hashMessage(m))
		if at, ok := t.known[next]; ok {
			next = at.path
		}
		paths = append(paths, next)
	}
	return paths
}

// findThread returns the thread that a request continues, or -1, and the number of its
// messages that are known. It corrects the paths if known messages were changed.
func (t *Transcript) findThread(kind hash, paths []hash, messages []loop.Message) (n, from int) {
	n, from = t.lastKnown(paths)
	if n >= 0 && t.threads[n].head == (point{paths[from], from}) {
		t.threads[n].before = t.threads[n].head
		return n, from
	}
	for i := len(messages); i > from; i-- {
		if messages[i-1].Role != loop.RoleAssistant {
			continue
		}
		if m, ok := t.answers[hashAnswer(kind, i, messages[i-1])]; ok {
			head := t.threads[m].head
			t.threads[m].before = head
			t.known[paths[i]] = place{head.path, m}
			t.follow(append(paths[:i], head.path), messages) // in place
			_, from = t.lastKnown(paths)
			return m, from
		}
	}
	if n < 0 {
		return -1, 0
	}
	shares := func(p point) bool { return p.depth > 0 && p.depth < len(paths) && paths[p.depth] == p.path }
	if th := t.threads[n]; !shares(th.asked) && !shares(th.before) {
		n = -1
	}
	return n, from
}

// lastKnown returns the thread of the last path that is known, or -1, and its number.
func (t *Transcript) lastKnown(paths []hash) (n, i int) {
	for i := len(paths) - 1; i > 0; i-- {
		if at, ok := t.known[paths[i]]; ok {
			return at.thread, i
		}
	}
	return -1, 0
}

// addAnswer appends a call's answer to added, and moves the thread's points.
func (t *Transcript) addAnswer(n int, kind hash, paths []hash, answered []loop.Message, calls callIDs, added []loop.Message) []loop.Message {
	th := &t.threads[n]
	th.asked = point{paths[len(paths)-1], len(paths) - 1}
	th.head = th.asked
	if t.answers[th.answer] == n {
		delete(t.answers, th.answer)
	}
	for _, m := range answered {
		path := hashOf(th.head.path, hashMessage(m))
		at, repeated := t.known[path]
		if repeated {
			path = at.path
		}
		th.head = point{path, th.head.depth + 1}
		t.known[path] = place{path, n}
		th.answer = hashAnswer(kind, th.head.depth, m)
		t.answers[th.answer] = n
		if calls.assign(m, path); !repeated {
			added = append(added, m)
		}
	}
	return added
}

// callIDs are the IDs of calls without results, by the agent's IDs.
type callIDs map[string][]string

// assign sets the IDs in a message. Until then, ProviderID and ToolUseID are the agent's
// IDs, or made by [noID].
func (ids callIDs) assign(m loop.Message, path hash) {
	n := uint64(0) // counts calls only, since agents leave out reasoning
	for _, b := range m.Blocks {
		var number hash
		binary.BigEndian.PutUint64(number[:], n)
		made := hashOf(path, number)
		id := "tu_" + base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(made[:])
		switch u, r := b.ToolUse, b.ToolResult; {
		case u != nil:
			u.ID = id
			n++
			ids[u.ProviderID] = append(ids[u.ProviderID], id)
			if len(u.ProviderID) > maxProviderIDBytes || strings.HasPrefix(u.ProviderID, noID("")) {
				u.ProviderID = ""
			}
		case r != nil:
			open := ids[r.ToolUseID]
			if len(open) > 0 {
				id = open[0]
				ids[r.ToolUseID] = open[1:]
			}
			r.ToolUseID = id
		}
	}
}

// maxProviderIDBytes is the loop's bound.
const maxProviderIDBytes = 128

// noID stands for the missing ID of a call of a tool.
func noID(tool string) string { return "\x00" + tool }

func hashOf(parts ...hash) hash {
	var all []byte
	for _, p := range parts {
		all = append(all, p[:]...)
	}
	return sum(all)
}

func sum(data []byte) hash {
	full := sha256.Sum256(data)
	return hash(full[:len(hash{})])
}

// hashMessage hashes what makes two messages the same.
func hashMessage(m loop.Message) hash {
	data := append([]byte(m.Role), 0)
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			data = appendWords(data, b.Text.Text)
		case b.ToolUse != nil:
			data = append(append(append(data, 0, 'u'), b.ToolUse.Name...), 0)
			data = append(appendWords(append(data, canonical(b.ToolUse.Input)...), b.ToolUse.Raw), 0)
		case b.ToolResult != nil:
			data = append(data, 0, 'r')
			for _, c := range b.ToolResult.Content {
				data = appendWords(data, c.Text)
			}
		}
	}
	return sum(data)
}

// hashAnswer hashes what makes a message at a depth a thread's last answer, even if the
// messages before it differ.
func hashAnswer(kind hash, depth int, m loop.Message) hash {
	own := hashMessage(m)
	var ids []byte
	for _, b := range m.Blocks {
		if b.ToolUse != nil && b.ToolUse.ProviderID != "" && !strings.HasPrefix(b.ToolUse.ProviderID, noID("")) {
			ids = append(append(ids, b.ToolUse.ProviderID...), 0)
		}
	}
	if ids != nil {
		own = sum(ids)
	}
	var at hash
	binary.BigEndian.PutUint64(at[:], uint64(depth))
	return hashOf(kind, at, own)
}

// appendWords appends a text without white space.
func appendWords(data []byte, text string) []byte {
	for i := range len(text) {
		switch text[i] {
		case ' ', '\t', '\r', '\n':
		default:
			data = append(data, text[i])
		}
	}
	return data
}

// canonical returns JSON with sorted names and without white space. Long JSON, which
// would take much memory, stays as it is.
func canonical(data []byte) []byte {
	if len(data) > 1<<20 {
		return data
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&v) == nil {
		if sorted, err := json.Marshal(v); err == nil {
			return sorted
		}
	}
	return data
}

// sketch is the smallest hashes of a text's lines, sorted. Those of two texts have
// about the same share in common as their lines.
type sketch []uint64

const (
	maxSketch = 64
	// maxLines bounds the lines that are hashed.
	maxLines = 10_000
)

func sketchOf(text string) sketch {
	var s sketch
	for line := range strings.Lines(text) {
		h := fnv.New64a()
		_, _ = h.Write([]byte(strings.TrimSpace(line))) // never fails
		if s = append(s, h.Sum64()); len(s) == maxLines {
			break
		}
	}
	slices.Sort(s)
	s = slices.Compact(s)
	return slices.Clone(s[:min(len(s), maxSketch)])
}

// isLike reports whether at least half of the lines are the same.
func (s sketch) isLike(o sketch) bool {
	same := 0
	for _, h := range s {
		if _, ok := slices.BinarySearch(o, h); ok {
			same++
		}
	}
	return 2*same >= max(len(s), len(o))
}

// findKind returns the root of paths for instructions.
func (t *Transcript) findKind(s sketch) hash {
	i := slices.IndexFunc(t.kinds, s.isLike)
	if i < 0 {
		i = len(t.kinds)
		t.kinds = append(t.kinds, s)
	}
	var root hash
	binary.BigEndian.PutUint64(root[:], uint64(i+1))
	return root
}
