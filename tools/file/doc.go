// Package file holds the tools that read and change the workspace's files.
// read_file, list_dir, glob and grep run in the host process and read through a
// workspace.View. write_file, patch_file and delete_file are workspace.Ops that are
// applied in the sandbox. The package has no other access to files.
//
// Names and arguments are those that models already know; other spellings are
// aliases. File contents and names are data: names are escaped if they contain what
// a reader would not see, text that is not UTF-8 is marked as lossy, and every
// result is bounded and says where it was cut.
package file
