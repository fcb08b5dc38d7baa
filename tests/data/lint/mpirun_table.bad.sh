export NCCL_TUNER_PLUGIN=/opt/libcollcast_tuner.so
export COLLCAST_TUNER_TABLE=/opt/tuner.csv
mpirun -np 16 -H a:8,b:8 -x NCCL_TUNER_PLUGIN python train.py
