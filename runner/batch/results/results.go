// Package results stores the results of a batch that runs on several machines, in a
// shared directory or an S3 bucket.
//
// Objects in a store never change. An object is created only if its name doesn't exist,
// so that if two machines run the same trial, the first one's result counts everywhere.
package results

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

// ErrExists is the error for an existing object.
var ErrExists = errors.New("the object exists already")

// Store stores objects. Names have two parts separated by a slash, such as trials/NAME.
// Parts contain letters, digits, "-", "_" and ".", and don't begin with ".". A Store is
// safe for concurrent use.
type Store interface {
	// Put creates an object of the given size from all of content. Once it returns nil,
	// the object survives crashes of the process and machine. If the object exists, Put
	// changes nothing and the error wraps [ErrExists].
	Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error
	// Get opens an object, which the caller closes. If it doesn't exist, the error
	// wraps [fs.ErrNotExist].
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	Has(ctx context.Context, name string) (bool, error)
	// List returns the sorted second parts of the names with dir as first part.
	List(ctx context.Context, dir string) ([]string, error)
	// String returns the store's location, without secrets.
	String() string
}

// Open opens a store: a directory, which is made if it is missing, or s3://BUCKET or
// s3://BUCKET/PREFIX in an existing bucket. Lookup looks up environment variables, for
// S3 the usual AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
// and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for services other than Amazon's. Open
// fails unless creating an object twice fails: a service that ignores the condition
// would lose results.
func Open(ctx context.Context, location string, lookup func(name string) (string, bool)) (Store, error) {
	s, err := openStore(location, lookup)
	if err == nil {
		err = checkConditional(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("results in %s: %w", location, err)
	}
	return s, nil
}

func openStore(location string, lookup func(name string) (string, bool)) (Store, error) {
	if !strings.Contains(location, "://") {
		dir, err := filepath.Abs(location)
		if err != nil {
			return nil, err
		}
		return openDirectory(dir)
	}
	u, err := url.Parse(location)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want the path of a directory, or s3://BUCKET/PREFIX")
	}
	return openBucket(u.Host, strings.Trim(u.Path, "/"), lookup)
}

const probeName = "store/version-1"

// ErrUnconditional is the error for a store that replaces objects.
var ErrUnconditional = errors.New("the store does not refuse to replace an object")

// checkConditional returns an error unless the store is writable and refuses to replace
// objects.
func checkConditional(ctx context.Context, s Store) error {
	for range 2 {
		if err := s.Put(ctx, probeName, strings.NewReader("1\n"), 2); errors.Is(err, ErrExists) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return ErrUnconditional
}

func checkName(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		return fmt.Errorf("invalid name %q of an object: want two parts", name)
	}
	for _, p := range parts {
		valid := p != "" && p[0] != '.' && strings.IndexFunc(p, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
		}) < 0
		if !valid {
			return fmt.Errorf("invalid name %q of an object", name)
		}
	}
	return nil
}
