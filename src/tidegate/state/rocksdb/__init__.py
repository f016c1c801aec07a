"""State in RocksDB: larger than memory; increments by SST file. The only importer of rocksdict."""
