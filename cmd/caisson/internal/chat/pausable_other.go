//go:build !unix

package chat

import (
	"os"
	"time"
)

// pausableFile is a file whose reader can be held back: there is none here.
type pausableFile struct{}

func newPausableFile(*os.File) *pausableFile { return nil }

func (*pausableFile) read([]byte, time.Duration) (int, error) { return 0, nil }

func (*pausableFile) pause() (resume func()) { return func() {} }

func (*pausableFile) close() {}
