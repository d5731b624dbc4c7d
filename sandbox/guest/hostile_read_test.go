package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

func (l *liar) sendResult(r wire.ReadResult) {
	l.frame(1, wire.TypeEOF, 1, "")
	l.json(1, wire.TypeEnd, r)
}

func entries(list ...wire.DirEntry) func(*liar) {
	return func(l *liar) {
		for _, e := range list {
			line, _ := json.Marshal(e)
			l.frame(1, wire.TypeData, 1, string(line)+"\n")
		}
		l.sendResult(wire.ReadResult{})
	}
}

func plainFile(size int64) *wire.FileInfo {
	return &wire.FileInfo{Type: "file", Size: size, Mode: 0o644, Modified: wire.Timestamp{1_700_000_000, 5}}
}

func TestReadLies(t *testing.T) {
	const info, list, file = "info", "list", "file"
	name := func(n string) wire.DirEntry { return wire.DirEntry{Name: []byte(n), Type: "file"} }
	for _, tt := range []struct {
		name string
		kind string
		lie  func(*liar)
	}{
		{"no info", info, func(l *liar) { l.sendResult(wire.ReadResult{}) }},
		{"data in an info", info, func(l *liar) { l.frame(1, wire.TypeData, 1, "x"); l.sendResult(wire.ReadResult{Info: plainFile(1)}) }},
		{"unknown type", info, func(l *liar) { i := plainFile(1); i.Type = "door"; l.sendResult(wire.ReadResult{Info: i}) }},
		{"directory's mode of a file", info, func(l *liar) { i := plainFile(1); i.Mode |= 1 << 31; l.sendResult(wire.ReadResult{Info: i}) }},
		{"bits that no mode has", info, func(l *liar) { i := plainFile(1); i.Mode |= 1 << 12; l.sendResult(wire.ReadResult{Info: i}) }},
		{"negative size", info, func(l *liar) { l.sendResult(wire.ReadResult{Info: plainFile(-1)}) }},
		{"nanoseconds", info, func(l *liar) { i := plainFile(1); i.Modified[1] = 1e9; l.sendResult(wire.ReadResult{Info: i}) }},
		{"far future", info, func(l *liar) { i := plainFile(1); i.Modified[0] = 1 << 60; l.sendResult(wire.ReadResult{Info: i}) }},
		{"more of an info", info, func(l *liar) { l.sendResult(wire.ReadResult{Info: plainFile(1), More: true}) }},
		{"info and error", info, func(l *liar) {
			l.sendResult(wire.ReadResult{Info: plainFile(1), Error: &wire.OpError{Kind: "escape"}})
		}},
		{"unknown error", info, func(l *liar) { l.sendResult(wire.ReadResult{Error: &wire.OpError{Kind: "root"}}) }},
		{"a file leads somewhere", info, func(l *liar) {
			i := plainFile(1)
			i.Target = []byte("x")
			l.sendResult(wire.ReadResult{Info: i})
		}},
		{"mount without an error", info, func(l *liar) { l.sendResult(wire.ReadResult{Info: plainFile(1), Mount: true}) }},
		{"cancelled", info, func(l *liar) { l.sendResult(wire.ReadResult{Cancelled: true}) }},
		{"no end of the channel", info, func(l *liar) { l.json(1, wire.TypeEnd, wire.ReadResult{Info: plainFile(1)}) }},
		{"starts", info, func(l *liar) { l.json(1, wire.TypeStarted, wire.Started{}) }},
		{"standard error", info, func(l *liar) { l.frame(1, wire.TypeData, 2, "x") }},
		{"credit", info, func(l *liar) { _ = l.writer.SendCredit(1, 0, 1) }},
		{"unknown field", info, func(l *liar) {
			l.frame(1, wire.TypeEOF, 1, "")
			l.frame(1, wire.TypeEnd, 0, `{"path":"/etc"}`)
		}},

		{"name with a slash", list, entries(name("../../etc/passwd"))},
		{"parent", list, entries(name(".."))},
		{"itself", list, entries(name("."))},
		{"no name", list, entries(name(""))},
		{"NUL", list, entries(name("a\x00"))},
		{"long name", list, entries(name(strings.Repeat("x", 256)))},
		{"twice", list, entries(name("a"), name("a"))},
		{"out of order", list, entries(name("b"), name("a"))},
		{"more than asked for", list, entries(name("a"), name("b"), name("c"), name("d"))},
		{"longer than asked for", list, entries(
			wire.DirEntry{Name: []byte("a"), Type: "symlink", Mode: 1 << 27, Target: make([]byte, 600)},
			wire.DirEntry{Name: []byte("b"), Type: "symlink", Mode: 1 << 27, Target: make([]byte, 600)},
		)},
		{"a file leads somewhere", list, entries(wire.DirEntry{Name: []byte("a"), Type: "file", Target: []byte("x")})},
		{"a long link", list, entries(wire.DirEntry{Name: []byte("a"), Type: "symlink", Mode: 1 << 27, Target: make([]byte, workspace.MaxPathBytes+1)})},
		{"a link with a file's mode", list, entries(wire.DirEntry{Name: []byte("a"), Type: "symlink"})},
		{"time of change", list, entries(wire.DirEntry{Name: []byte("a"), Type: "file", Changed: &wire.Timestamp{0, -1}})},
		{"info of a directory", list, func(l *liar) { l.sendResult(wire.ReadResult{Info: plainFile(1)}) }},
		{"not JSON", list, func(l *liar) { l.frame(1, wire.TypeData, 1, "{\n"); l.sendResult(wire.ReadResult{}) }},
		{"cut off", list, func(l *liar) { l.frame(1, wire.TypeData, 1, `{"name":"YQ=="`); l.sendResult(wire.ReadResult{}) }},
		{"long line", list, func(l *liar) { l.frame(1, wire.TypeData, 1, strings.Repeat(" ", wire.MaxEntryLine+1)) }},
		{"endless", list, func(l *liar) {
			for range wire.MaxDirectoryBytes/wire.MaxData + 1 {
				l.frame(1, wire.TypeData, 1, strings.Repeat("\n", wire.MaxData))
			}
		}},

		{"no info of a file", file, func(l *liar) { l.sendResult(wire.ReadResult{}) }},
		{"more than was asked for", file, func(l *liar) {
			l.frame(1, wire.TypeData, 1, "12345678901")
			l.sendResult(wire.ReadResult{Info: plainFile(11)})
		}},
		{"smaller than what came", file, func(l *liar) {
			l.frame(1, wire.TypeData, 1, "12345")
			l.sendResult(wire.ReadResult{Info: plainFile(6)})
		}},
		{"cut off without cause", file, func(l *liar) {
			l.frame(1, wire.TypeData, 1, "12345")
			l.sendResult(wire.ReadResult{Info: plainFile(100), More: true})
		}},
		{"a directory", file, func(l *liar) { l.sendResult(wire.ReadResult{Info: &wire.FileInfo{Type: "dir", Mode: 1 << 31}}) }},
		{"gone", file, func(l *liar) { l.frame(1, wire.TypeData, 1, "12345"); _ = l.raw.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, l := play(t)
			go func() {
				l.next()
				go l.drain()
				tt.lie(l)
			}()
			var err error
			switch v := c.View(); tt.kind {
			case info:
				_, err = v.Stat(t.Context(), "a")
			case list:
				_, _, err = v.ReadDir(t.Context(), ".", true, workspace.Capacity{Entries: 3, Bytes: 1 << 10})
			case file:
				_, err = v.ReadFile(t.Context(), "a", 2, 10)
			}
			if !errors.Is(err, sandbox.ErrLost) {
				t.Errorf("error is %v, want one of ErrLost", err)
			}
			<-c.Done()
		})
	}
}

// TestReadTruths checks that possible answers are accepted as they are.
func TestReadTruths(t *testing.T) {
	for _, tt := range []struct {
		name string
		tell func(*liar)
		call func(workspace.View, context.Context) (any, error)
		want any
		kind workspace.Kind
	}{
		{
			name: "info", tell: func(l *liar) { l.sendResult(wire.ReadResult{Info: plainFile(7)}) },
			call: func(v workspace.View, ctx context.Context) (any, error) { return v.Stat(ctx, "/workspace/d//f") },
			want: workspace.Info{Path: "d/f", Type: workspace.TypeFile, Size: 7, Mode: 0o644, ModTime: time.Unix(1_700_000_000, 5)},
		},
		{
			name: "file", tell: func(l *liar) {
				l.frame(1, wire.TypeData, 1, "12345")
				l.frame(1, wire.TypeData, 1, "67890")
				l.sendResult(wire.ReadResult{Info: plainFile(13), More: true})
			},
			call: func(v workspace.View, ctx context.Context) (any, error) { return v.ReadFile(ctx, "f", 2, 10) },
			want: workspace.File{
				Info:   workspace.Info{Path: "f", Type: workspace.TypeFile, Size: 13, Mode: 0o644, ModTime: time.Unix(1_700_000_000, 5)},
				Offset: 2, Data: []byte("1234567890"), Truncated: true,
			},
		},
		{
			name: "directory", tell: func(l *liar) {
				l.frame(1, wire.TypeData, 1, `{"name":"YQ==","type":"fi`)
				l.frame(1, wire.TypeData, 1, "le\",\"size\":3,\"inode\":9}\n")
				l.sendResult(wire.ReadResult{More: true})
			},
			call: func(v workspace.View, ctx context.Context) (any, error) { return v.List(ctx, "d", 1) },
			want: workspace.Listing{Path: "d", Truncated: true, Entries: []workspace.Entry{{Path: "d/a", Depth: 1, Type: workspace.TypeFile, Size: 3, Inode: 9}}},
		},
		{
			name: "failure", tell: func(l *liar) {
				l.sendResult(wire.ReadResult{Error: &wire.OpError{Kind: "escape", Path: "/etc/shadow", Detail: "\x1bd"}})
			},
			call: func(v workspace.View, ctx context.Context) (any, error) { return v.Stat(ctx, "d") }, kind: workspace.KindEscape,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, l := play(t)
			go func() {
				l.next()
				go l.drain()
				tt.tell(l)
			}()
			got, err := tt.call(c.View(), t.Context())
			if e, ok := errors.AsType[*workspace.Error](err); tt.kind != "" {
				if !ok || e.Kind != tt.kind || e.Path != "d" || e.Detail != "?d" {
					t.Errorf("error %v", err)
				}
			} else if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

// TestReadSilence checks that a read returns at its deadline or when cancelled,
// and that a guest that then stays silent is lost.
func TestReadSilence(t *testing.T) {
	for name, tt := range map[string]struct {
		cancel, after time.Duration
		says          string
	}{
		"silent":    {after: workspace.DefaultDeadline, says: "did not answer within"},
		"cancelled": {cancel: time.Second, after: time.Second, says: "why"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				go l.drain()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, func() { cancel(errors.New("why")) })
				}
				began := time.Now()
				_, err := c.View().ReadFile(ctx, "f", 0, 0)
				if took := time.Since(began); took != tt.after || err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("after %v: %v", took, err)
				}
				<-c.Done()
				if took := time.Since(began); took != tt.after+30*time.Second || !errors.Is(c.Err(), sandbox.ErrLost) {
					t.Errorf("lost after %v: %v", took, c.Err())
				}
			})
		})
	}
}

// FuzzRead feeds the host arbitrary bytes while it reads. The read and the
// connection must end.
func FuzzRead(f *testing.F) {
	frame := func(typ wire.Type, channel uint8, payload string) []byte {
		var b bytes.Buffer
		_ = wire.NewWriter(&b).Send(wire.Frame{Stream: 1, Type: typ, Channel: channel, Payload: []byte(payload)})
		return b.Bytes()
	}
	eof := frame(wire.TypeEOF, 1, "")
	seeds := [][]byte{
		{},
		append(bytes.Clone(eof), frame(wire.TypeEnd, 0, `{"info":{"type":"file","size":5,"mode":420,"modified":[1,2]}}`)...),
		append(append(frame(wire.TypeData, 1, "hello"), eof...), frame(wire.TypeEnd, 0, `{"info":{"type":"file","size":5,"modified":[1,2]}}`)...),
		append(append(frame(wire.TypeData, 1, "{\"name\":\"YQ==\",\"type\":\"dir\",\"mode\":2147483648}\n"), eof...), frame(wire.TypeEnd, 0, `{"more":true}`)...),
		append(bytes.Clone(eof), frame(wire.TypeEnd, 0, `{"error":{"kind":"not_found","path":"","detail":"x"},"mount":true}`)...),
		frame(wire.TypeRefused, 0, `{"code":"busy","text":"x"}`),
	}
	for kind := range 3 {
		for _, s := range seeds {
			f.Add(kind, s)
		}
	}
	f.Fuzz(func(t *testing.T, kind int, data []byte) {
		c, l := play(t)
		go l.drain()
		go func() {
			_, _ = l.raw.Write(data)
			_ = l.raw.Close()
		}()
		v := c.View()
		switch kind % 3 {
		case 0:
			_, _ = v.Lstat(t.Context(), "a")
		case 1:
			got, err := v.List(t.Context(), "a", 2)
			for _, e := range got.Entries {
				if !strings.HasPrefix(e.Path, "a/") || strings.Contains(e.Path, "..") && strings.Contains(e.Path, "/../") || err != nil {
					t.Errorf("entry %q, %v", e.Path, err)
				}
			}
		default:
			got, err := v.ReadFile(t.Context(), "a", 0, 64)
			if len(got.Data) > 64 {
				t.Errorf("%d bytes, %v", len(got.Data), err)
			}
		}
		<-c.Done()
		if err := c.Err(); !errors.Is(err, sandbox.ErrLost) {
			t.Error(fmt.Errorf("connection's error is %w", err))
		}
	})
}
