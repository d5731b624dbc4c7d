package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// scarTree does to a directory whatever might reach the next sandbox on the
// image, or harm the host that removes it, and prints what worked.
func scarTree(args []string) error {
	at := func(name string) string { return filepath.Join(args[0], name) }
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return os.WriteFile(at("file"), []byte("scar\n"), 0o666) }},
		{"remove", func() error { return os.Remove(at("victim")) }},
		{"replace", func() error { return os.Mkdir(at("victim"), 0o777) }},
		{"hard link", func() error { return os.Link(at("file"), at("hard")) }},
		{"symlink", func() error { return os.Symlink("/../../../../etc", at("out")) }},
		{"fifo", func() error { return unix.Mkfifo(at("fifo"), 0o666) }},
		{"whiteout", func() error { return unix.Mknod(at("whiteout"), unix.S_IFCHR, 0) }},
		{"opaque", func() error { return unix.Setxattr(args[0], "user.overlay.opaque", []byte("y"), 0) }},
		{"redirect", func() error { return unix.Setxattr(args[0], "user.overlay.redirect", []byte("/etc"), 0) }},
		{"sparse", func() error {
			return errors.Join(os.WriteFile(at("sparse"), nil, 0o600), os.Truncate(at("sparse"), 1<<30))
		}},
		{"closed", func() error {
			return errors.Join(os.MkdirAll(at("closed/inside"), 0o755), os.Chmod(at("closed/inside"), 0), os.Chmod(at("closed"), 0))
		}},
		{"deep", func() error { return makeDeep(args[0], 200) }},
		{"many", func() error { return makeMany(at("many"), 2000) }},
	} {
		if s.do() == nil {
			fmt.Println(s.name)
		}
	}
	return nil
}

// makeDeep nests directories deeper than a path can be.
func makeDeep(dir string, depth int) error {
	fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	name := "deep-" + fmt.Sprintf("%095d", 0)
	for range depth {
		if err := unix.Mkdirat(fd, name, 0o777); err != nil {
			return err
		}
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		unix.Close(fd)
		fd = next
	}
	return unix.Close(fd)
}

func makeMany(dir string, count int) error {
	err := os.Mkdir(dir, 0o777)
	for i := range count {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o666))
	}
	return err
}

// printTree prints the names, modes and contents below a directory, as far as
// paths reach.
func printTree(args []string) error {
	return filepath.WalkDir(args[0], func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			fmt.Println(p, "unreadable")
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() && info.Size() < 100 {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(data)
		}
		fmt.Printf("%s %v %q\n", p, info.Mode(), text)
		if len(p) > 2000 {
			return fs.SkipDir
		}
		return nil
	})
}
